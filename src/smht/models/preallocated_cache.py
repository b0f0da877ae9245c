"""A key-value cache with room for tokens to come, so that a new one is written where it belongs and nothing is copied.

transformers' `DynamicCache` makes new tensors for all tokens with each new one, and its `StaticCache` has to know the
longest length before, needs a mask of that length, and attends to all of it on reading the prompt.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer


class _Rows:
    """Keys or values of the tokens so far, at the beginning of memory for more of them.

    Args:
        memory: `[B, H, S, K]`.
        tokens: how many of the `S` places are taken.

    Attributes:
        room: `S`.
        is_closed: made in inference mode, so that it cannot be written to outside of it.
    """

    __slots__ = ("is_closed", "memory", "room", "tokens")

    def __init__(self, memory: Tensor, tokens: int) -> None:
        self.tokens = tokens
        self._hold(memory)

    def _hold(self, memory: Tensor) -> None:
        self.memory, self.room, self.is_closed = memory, memory.shape[2], memory.is_inference()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is closed or not by the mode that it was made in."""
        return _Rows, (self.memory, self.tokens)

    @property
    def taken(self) -> Tensor:
        """`[B, H, tokens, K]`, a view."""
        return self.memory[:, :, : self.tokens]

    def make_room(self, count: int) -> Tensor:
        """The memory, with room for `count` tokens more."""
        wanted = self.tokens + count
        if wanted > self.room or (self.is_closed and not torch.is_inference_mode_enabled()):
            batch, heads, _, width = self.memory.shape
            # Twice as much, so that each token is copied about once; memory that is not written to yet costs nothing.
            larger = self.memory.new_empty(batch, heads, 2 * wanted, width)
            larger[:, :, : self.tokens] = self.taken
            self._hold(larger)
        return self.memory

    def append(self, new: Tensor) -> None:
        """Take in `[B, H, T, K]`."""
        first, count = self.tokens, new.shape[2]
        self.make_room(count)[:, :, first : first + count] = new
        self.tokens += count


class PreallocatedLayer(DynamicLayer):
    """Keys and values of one layer, with room for more.

    To transformers it is a `DynamicLayer`: its `keys` and `values` are those of the tokens so far, others may be put in
    their place, and `update` makes them grow.
    """

    def __init__(self) -> None:
        self._keys: _Rows | None = None
        self._values: _Rows | None = None
        super().__init__()

    @property
    def keys(self) -> Tensor | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """`[B, H, T, K]` of the tokens so far."""
        return None if self._keys is None else self._keys.taken

    @keys.setter
    def keys(self, value: Tensor | None) -> None:
        self._keys = None if value is None else _Rows(value, value.shape[2])

    @property
    def values(self) -> Tensor | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Like `keys`."""
        return None if self._values is None else self._values.taken

    @values.setter
    def values(self, value: Tensor | None) -> None:
        self._values = None if value is None else _Rows(value, value.shape[2])

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """See `DynamicLayer`."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values `[B, H, T, K]`; return all."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self._keys is not None and self._values is not None
        if torch.is_grad_enabled() or key_states.shape[:2] != self._keys.memory.shape[:2]:
            # Autograd forbids to write where it may still read. Other sizes are refused there.
            return super().update(key_states, value_states, *args, **kwargs)
        self._keys.append(key_states)
        self._values.append(value_states)
        return self._keys.taken, self._values.taken

    def get_seq_length(self) -> int:
        """See `DynamicLayer`."""
        return 0 if self._keys is None else self._keys.tokens

    def make_room(self, is_inference: bool) -> tuple[int, Tensor | None, Tensor | None]:
        """How many tokens there are, and memory of keys and of values with room for one more; none before the first.

        Args:
            is_inference: whether inference mode is on, which one question answers for all layers.

        Returns:
            tokens, keys `[B, H, S, K]` and values.
        """
        keys, values = self._keys, self._values
        if keys is None or values is None:
            return 0, None, None
        tokens = keys.tokens
        if tokens < keys.room and tokens < values.room and (is_inference or not (keys.is_closed or values.is_closed)):
            return tokens, keys.memory, values.memory
        return tokens, keys.make_room(1), values.make_room(1)

    def take_in(self) -> None:
        """Count the token that was written into that room."""
        assert self._keys is not None and self._values is not None
        self._keys.tokens += 1
        self._values.tokens += 1


class PreallocatedCache(DynamicCache):
    """A `DynamicCache` of layers with room.

    Args:
        num_layers: how many.
    """

    layers: list[PreallocatedLayer]  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, num_layers: int) -> None:
        Cache.__init__(self, layers=[PreallocatedLayer() for _ in range(num_layers)])
