"""Models described by a Hugging Face ``config.json``.

The file may come from anywhere, so nothing in it is trusted: its architecture has to be
a known one (`moesim.spec.architectures`), and every missing or wrong key is reported.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moesim.errors import InputError, Problem, meant, shown
from moesim.spec.architectures import (
    ARCHITECTURES,
    FAMILIES,
    MOST_LAYERS,
    REFUSED,
    Family,
)
from moesim.spec.fields import MISSING, Fields
from moesim.spec.files import place, read_json
from moesim.spec.model import ModelSpec

_EXPERTS = 2**16


def read_config(path: Path) -> ModelSpec:
    """Return the model that a ``config.json`` describes, named after its file.

    Raises
    ------
    InputError
        The file cannot be read, its architecture is not supported, or keys are missing
        or wrong; all of them at once.
    """
    stem = path.parent.name if path.stem == "config" else path.stem
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem)[:64] or "model"
    return model_from_config(read_json(path), name, place(path))


def model_from_config(
    config: Mapping[str, Any], name: str, where: str = ""
) -> ModelSpec:
    """Return the model that the content of a ``config.json`` describes.

    Parameters
    ----------
    config : mapping
        The parsed file; a multimodal one has its language model in ``text_config``.
    name : str
        The name the model is to have.
    where : str
        The file, for messages and as the model's source.

    Raises
    ------
    InputError
        As `read_config`.
    """
    nested = config.get("text_config")
    table = nested if isinstance(nested, Mapping) else config
    kind = _kind(config, where)
    fields = Fields(table, where)
    model = _build(fields, FAMILIES[kind], name)
    fields.finish()
    misfits = model.misfits()
    if misfits:
        raise InputError([Problem(misfit, where) for misfit in misfits])
    return model


def _kind(config: Mapping[str, Any], where: str) -> str:
    """Return the family's name: the model type, else the first architecture's."""
    kind = config.get("model_type")
    if kind is None:
        listed = config.get("architectures")
        first = listed[0] if isinstance(listed, list) and listed else None
        kind = ARCHITECTURES.get(first, first) if isinstance(first, str) else None
    if isinstance(kind, str) and kind in FAMILIES:
        return kind
    raise InputError([Problem(_unsupported(kind), where, key="model_type")])


def _unsupported(kind: object) -> str:
    known = ", ".join(FAMILIES)
    if not isinstance(kind, str):
        return f"missing, so the architecture is unknown; supported: {known}"
    if kind in REFUSED:
        return f"{kind} is not supported: {REFUSED[kind]}"
    found = f"{shown(kind)} is not supported{meant(kind, FAMILIES, 0.8)}"
    return f"{found}; supported: {known}"


def _build(fields: Fields, family: Family, name: str) -> ModelSpec:
    layers = fields.count(family.layers, most=MOST_LAYERS)
    moe_layers = family.moe_layers(fields, layers)
    has_dense = len(moe_layers) < layers and bool(family.dense_width)
    groups, top_groups = _groups(fields, family)
    return ModelSpec(
        name=name,
        layers=layers,
        moe_layers=moe_layers,
        hidden=fields.count(family.hidden),
        vocab=fields.count("vocab_size"),
        attention=family.attention(fields),
        experts=fields.count(family.experts, most=_EXPERTS),
        top_k=fields.count(family.top_k, most=_EXPERTS),
        expert_width=fields.count(family.expert_width),
        shared_width=family.shared(fields),
        dense_width=fields.count(family.dense_width) if has_dense else 0,
        groups=groups,
        top_groups=top_groups,
        tied_embeddings=fields.flag("tie_word_embeddings", default=False),
        expert_bias=family.expert_bias,
        source=fields.where,
    )


def _groups(fields: Fields, family: Family) -> tuple[int, int]:
    """Return groups, and how many a token may use; null or greedy: no limit."""
    groups = fields.get("n_group")
    absent = groups is MISSING and not family.groups
    if absent or groups is None or fields.get("topk_method") == "greedy":
        return 1, 1
    return fields.count("n_group"), fields.count("topk_group")
