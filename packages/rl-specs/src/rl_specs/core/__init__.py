"""What all specs share."""
