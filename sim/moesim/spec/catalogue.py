"""Models by name: packaged presets, and any ``config.json`` by its path."""

from dataclasses import fields
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from moesim.errors import InputError, Problem, meant, shown
from moesim.spec.huggingface import read_config
from moesim.spec.model import AttentionSpec, ModelSpec
from moesim.units import parse_count


def load_model(name_or_path: str) -> ModelSpec:
    """Return a packaged model, or the one that a ``config.json`` describes.

    Parameters
    ----------
    name_or_path : str
        A name out of `model_names`; or the path of a Hugging Face ``config.json``,
        known by a slash in it or by its ending.

    Raises
    ------
    InputError
        There is no such model (it names the nearest), or the file cannot be used.

    Examples
    --------
    >>> load_model("mixtral-8x7b").top_k
    2
    """
    if name_or_path.endswith(".json") or "/" in name_or_path or "\\" in name_or_path:
        return read_config(Path(name_or_path))
    names = model_names()
    if name_or_path in names:
        return _load_preset(name_or_path)
    hint = meant(name_or_path.lower(), names, 0.4)
    raise InputError(
        f"no model {shown(name_or_path)}{hint}; known: {', '.join(names)},"
        " or the path of a Hugging Face config.json"
    )


def model_names() -> tuple[str, ...]:
    """Return the names of the packaged models, sorted."""
    names = (entry.name for entry in _folder().iterdir())
    return tuple(sorted(name[:-5] for name in names if name.endswith(".yaml")))


def model_from_table(table: dict[str, Any], name: str) -> ModelSpec:
    """Return the model of a preset: the fields of `ModelSpec`, with two shorthands.

    ``moe_layers: {first: 3, every: 1}`` stands for layers 3, 4, ... to the last, and
    published parameters are counts such as ``46.7B``.

    Raises
    ------
    InputError
        A key is unknown, missing or wrong, or the shape contradicts itself.
    """
    values = dict(table)
    _refuse_unknown(values, ModelSpec, name)
    try:
        steps = values["moe_layers"]
        layers = range(steps["first"], values["layers"], steps["every"])
        attention = values["attention"]
        _refuse_unknown(attention, AttentionSpec, f"{name}: attention")
        values["attention"] = AttentionSpec(**attention)
        for key in ("published_total", "published_active"):
            if key in values:
                values[key] = float(parse_count(values[key]))
        model = ModelSpec(**values | {"name": name, "moe_layers": tuple(layers)})
        misfits = model.misfits()
    except KeyError as error:
        raise InputError(f"{name}: {error.args[0]} is missing") from None
    except (TypeError, ValueError, ArithmeticError) as error:
        raise InputError(f"{name}: {error}") from None
    if misfits:
        raise InputError([Problem(misfit, name) for misfit in misfits])
    return model


def _refuse_unknown(table: dict[str, Any], kind: type, where: str) -> None:
    known = [each.name for each in fields(kind)]
    unknown = [
        Problem("unknown key", where, key=key) for key in table if key not in known
    ]
    if unknown:
        raise InputError(unknown)


@cache
def _load_preset(name: str) -> ModelSpec:
    from ruamel.yaml import YAML

    text = (_folder() / f"{name}.yaml").read_text(encoding="utf-8")
    return model_from_table(YAML(typ="safe", pure=True).load(text), name)


def _folder() -> Traversable:
    return files("moesim.spec") / "presets" / "models"
