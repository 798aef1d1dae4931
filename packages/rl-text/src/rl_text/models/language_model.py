"""A causal language model as a module of flat tokens."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from rl_layout import Segments
from rl_tensordict import UnfitValue, require
from rl_tensordict.arguments import check_calls, check_choice, check_number
from rl_text.tokens.names import INPUT_IDS

BatchForm = Literal["padded", "packed"]


class LanguageModel(TensorDictModuleBase):  # type: ignore[misc]
    """Writes the logits of a causal model on tokens, each conversation by itself.

    The model is called as those of transformers are: with ``input_ids`` and ``attention_mask``,
    and what it returns has ``logits``. Layout ``"padded"`` lays one conversation in a row, which
    is right for every model. ``"packed"`` lays all of them in one row and tells them apart by
    ``position_ids`` that begin anew, which only some models understand: the first batch of
    several conversations is computed in both ways, and a model that mixes them is refused.

    Args:
        model: a causal language model.
        layout: ``"padded"`` or ``"packed"``.
        temperature: what logits are divided by; that which actions are sampled with.

    Raises:
        ValueError: there is no such layout, or the temperature is not above 0.
        TypeError: the model cannot be called.

    Example:
        >>> from rl_text import flat_tokens
        >>> from rl_text.testing import TinyModel
        >>> actor = LanguageModel(TinyModel(vocab_size=9))
        >>> actor(flat_tokens([[1, 2, 3], [4]]))["logits"].shape
        torch.Size([4, 9])
    """

    def __init__(
        self,
        model: Callable[..., Any],
        layout: BatchForm = "padded",
        *,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        check_calls(model=model)
        check_choice("layout", layout, ("padded", "packed"))
        check_above_0("temperature", temperature)
        self.model = model
        self.layout = layout
        self.temperature = temperature
        self.in_keys = [INPUT_IDS]
        self.out_keys = ["logits"]
        self._is_checked = False

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write ``"logits"`` ``[*B, T, V]``; 0 on padding.

        Args:
            tensordict: tokens ``[*B, T]`` with markers.

        Returns:
            The same tensordict.

        Raises:
            KeyError: there are no ``"input_ids"``.
            ValueError: the model mixes conversations that are packed, or its logits do not fit.
            IndexError: the model does not have a token or a place.
        """
        tokens, segments = require(tensordict, INPUT_IDS), Segments.of(tensordict)
        if self.layout == "packed":
            if not self._is_checked and len(segments) > 1:
                self._check_packed(tokens, segments)
            logits = segments.scatter(self._packed(tokens, segments))
        else:
            logits = segments.unpad(self._padded(tokens, segments))
        tensordict.set("logits", logits / self.temperature if self.temperature != 1 else logits)
        return tensordict

    def _padded(self, tokens: Tensor, segments: Segments) -> Tensor:
        mask = segments.pad_mask.long()
        return logits_of(self.model, segments.pad(tokens), attention_mask=mask)

    def _packed(self, tokens: Tensor, segments: Segments) -> Tensor:
        places = segments.gather(segments.positions).unsqueeze(0)
        row = segments.gather(tokens).unsqueeze(0)
        return logits_of(self.model, row, position_ids=places).squeeze(0)

    @torch.no_grad()
    def _check_packed(self, tokens: Tensor, segments: Segments) -> None:
        """Compare both layouts once, without dropout."""
        modules = [*self.model.modules()] if isinstance(self.model, nn.Module) else []
        training = [module.training for module in modules]
        for module in modules:
            module.training = False
        packed = self._packed(tokens, segments)
        padded = segments.gather(segments.unpad(self._padded(tokens, segments)))
        for module, was in zip(modules, training, strict=True):
            module.training = was
        worst, scale = (packed - padded).abs().max(), padded.abs().max()
        if worst > 1e-2 * scale:
            msg = (
                f"layout='packed': logits differ from those of each conversation alone by "
                f"{float(worst):.3g} of {float(scale):.3g}: {type(self.model).__name__} lets "
                "conversations of one row see each other. Pass layout='padded'."
            )
            raise UnfitValue(msg)
        self._is_checked = True


def call_model(model: Callable[..., Any], input_ids: Tensor, **given: Any) -> Any:
    """Call a model with those arguments that it takes, without a cache unless one is asked for."""
    called = model.forward if isinstance(model, nn.Module) else model
    known = inspect.signature(called).parameters
    takes_all = any(one.kind is one.VAR_KEYWORD for one in known.values())
    options = {"use_cache": False, **given}
    if not takes_all:
        options = {name: value for name, value in options.items() if name in known}
    try:
        found = model(input_ids=input_ids, **options)
    except IndexError as error:
        raise IndexError(f"model: {error}: {_asked_for(model, input_ids, given)}.") from error
    if not hasattr(found, "logits"):
        msg = f"model: expected a result with logits, got a {type(found).__name__}."
        raise TypeError(msg)
    return found


def logits_of(model: Callable[..., Any], input_ids: Tensor, **given: Any) -> Tensor:
    """The logits of each token, ``[S, L, V]``."""
    found: Tensor = call_model(model, input_ids, **given).logits
    if found.ndim != 3 or found.shape[:2] != input_ids.shape:
        wanted = f"[{input_ids.shape[0]}, {input_ids.shape[1]}, V]"
        msg = f"model: expected logits {wanted}, got {[*found.shape]}."
        raise UnfitValue(msg)
    return found


def _asked_for(model: Any, input_ids: Tensor, given: dict[str, Any]) -> str:
    """What a model was asked for, and what it knows, for the message of a failure."""
    mask = given.get("attention_mask", input_ids)
    low, high = (int(bound) for bound in input_ids.aminmax())
    said = f"tokens from {low} to {high}, up to {mask.shape[1]} in a row"
    config = getattr(model, "config", None)
    names = {"vocab_size": "tokens", "max_position_embeddings": "places"}
    sizes = {what: getattr(config, name, None) for name, what in names.items()}
    known = [f"{size} {what}" for what, size in sizes.items() if size is not None]
    return said + (f"; its config knows {' and '.join(known)}" if known else "")


def check_above_0(name: str, value: Any) -> None:
    """Raise unless a value is a number above 0."""
    check_number(name, value)
    if not value > 0:
        msg = f"{name}: expected more than 0, got {value}."
        raise ValueError(msg)
