from rl_envs.env.seeds import next_seed


def test_seeds_of_a_chain_do_not_meet():
    chains = []
    for seed in range(7):
        chain = [seed]
        for _ in range(50):
            chain.append(next_seed(chain[-1]))
        chains += chain
    assert len(set(chains)) == 7 * 51
    assert all(0 <= seed < 2**32 for seed in chains)
