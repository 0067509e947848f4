# ruff: noqa: E501 - tables of values are read across
"""Bad inputs, drawn with a seed: arguments, data, model folders, finished results and run.yaml."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arena import DONE, LINES, NO_RUN, line

ESC = "\x1b]0;owned\x07\x1b[31mred\r\n\u202eevil"
NESTED = "[" * 100_000
NUMBERS = ("-1", "0", "1", "7", "1000000000", "99999999999999999999", "1e3", "nan", "inf", "-inf", "1e308", "0x10", "٣")
TEXTS = ("", " ", "x", "-", "--", "*", ".", "..", "/", "/dev/null", "~", "~nosuchuser", "~nosuchuser/x", "a\0b"[:1],
         "a" * 300, "a/" * 3000, ESC, "\udcff\udcfe", "emoji 🦊", "ä", "base", "t.txt", "rows.jsonl", "nosuch/file.txt",
         "a,b,c", "@", "a@b", "http://example.org/x", "$(true)", "%s%n", "None", "null", "true", "[]", "{}", "0-9999",
         "svsim@", "svsim@nan", "cka", "top:0", "top:99", "top:-1", "bottom:1e9", "1x", "0x", "-1x", "infx", "1GB", "0B",
         "1e400GB")  # fmt: skip
VALUES: tuple[Any, ...] = (None, True, False, 0, -1, 1, 10**9, 10**30, 0.5, float("nan"), float("inf"), "", "x", ESC, "\ud800",
          "a" * 5000, [], [[]], [None], {}, {"a": {"b": []}}, [0, 1, 2], "../../etc/passwd", "float64", "gelu_new")  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A command line in a place where something was spoilt."""

    what: str
    words: Sequence[str]
    spoilt: Sequence[str] = ()
    """Names of what the place holds that are spoilt, so that they must be copies."""
    spoil: Callable[[Path], None] = lambda place: None
    draw: bool = False


def drawn(seed: int) -> Case:
    """The case of a seed."""
    r = random.Random(seed)
    kinds: Sequence[tuple[Callable[[random.Random], Case], int]] = (
        (argument, 30), (data, 20), (model, 26), (result, 14), (protocol, 8), (folder, 6))  # fmt: skip
    make = r.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
    return make(r)


# --- arguments --------------------------------------------------------------------------------------------------------


def argument(r: random.Random) -> Case:
    """One option or argument of a command has another value, is missing, or is one too many."""
    from typer.main import get_command

    from stratoscope.cli.main import app

    name = r.choice(list(LINES))
    words = line(name)
    command: Any = get_command(app)
    for word in name.replace(" DECODER", "").split():
        command = command.commands[word]
    how = r.random()
    if how < 0.75:
        param = r.choice([p for p in command.params if p.name not in ("help", "config")])
        value = r.choice(NUMBERS if r.random() < 0.5 else TEXTS)
        if param.param_type_name == "argument":
            first = len(name.replace(" DECODER", "").split())
            words[first : first + 1] = [value]
        else:
            flag = max(param.opts, key=len)
            flagged = [flag] if getattr(param, "is_flag", False) else [flag, value]
            if flag in words and len(flagged) == 2:
                words[words.index(flag) + 1] = value
            else:
                words += flagged
            words += [w for _ in range(r.choice((0, 0, 1))) for w in flagged]
    elif how < 0.85:
        words.insert(r.randrange(len(words) + 1), r.choice(TEXTS))
    else:
        del words[r.randrange(len(words))]
    return Case(f"argument of {name}", words)


# --- data -------------------------------------------------------------------------------------------------------------


def lines_of(r: random.Random) -> bytes:
    """Rows of JSON, some of them odd."""
    odd = [r.choice(VALUES) for _ in range(3)]
    rows: list[Any] = [{"text": f"a fine film {k}", "label": "ab"[k % 2]} for k in range(40)]
    for value in odd:
        rows[r.randrange(len(rows))] = r.choice(
            [{"text": value, "label": "a"}, {"text": "good film", "label": value}, value, {"text": {"deep": value}},
             {"text": "x " * r.choice((1, 3000)), "label": "a"}, {ESC: ESC}])  # fmt: skip
    return "\n".join(json.dumps(row) for row in rows).encode()


def contents(r: random.Random) -> bytes:
    """Bytes that are no data, or hardly."""
    return r.choice([
        lambda: b"",
        lambda: b"\n\n\n",
        lambda: r.randbytes(4000),
        lambda: b"\xff\xfe" + "text\nlabel\n".encode("utf-16-le"),
        lambda: "Grüße\n".encode("latin-1") * 20,
        lambda: b"a\0b\n" * 20,
        lambda: NESTED.encode(),
        lambda: (NESTED + "\n").encode() * 3,
        lambda: b'{"text": "\\ud800 half", "label": "\\udfff"}\n' * 20,
        lambda: (json.dumps({"text": ESC, "label": ESC}) + "\n").encode() * 20,
        lambda: "".join(json.dumps({"text": f"{ESC} {k}", "label": "ab"[k % 2] + ESC}) + "\n" for k in range(60)).encode(),
        lambda: "".join(json.dumps({"text": f"t {k}", "label": f"l{k}"}) + "\n" for k in range(60)).encode(),
        lambda: "".join(json.dumps({"text": "same", "label": "ab"[k % 2]}) + "\n" for k in range(60)).encode(),
        lambda: b'{"text": "x", "label": 1e999}\n{"text": "y", "label": NaN}\n' * 20,
        lambda: b'{"text": 123456789012345678901234567890, "label": 1}\n' * 20,
        lambda: b'text,label\n"never closed,a\n' + b"x,y\n" * 20,
        lambda: b"text,text\nx,y\n" * 5,
        lambda: ("text,label\n" + "".join(f"{ESC!r} {k},{'ab'[k % 2]}\n" for k in range(40))).encode(),
        lambda: b"one text only\n",
        lambda: b"x\n",
        lambda: ("w" * 200_000 + "\n").encode() * 2,
        lambda: ("word " * 20_000 + "\n").encode(),
        lambda: "\u200b\n\u00a0\n\u3000\n".encode() * 9,
        lambda: "\u0301\u0301\n🏳️‍🌈 🏳️‍🌈\n".encode() * 20,
        lambda: ("\x1b[31m colour \x07\n" * 30).encode(),
        lambda: b"1\tThe\tthe\tDET\n" * 4,
        lambda: b"1\tx\tx\tN\tN\t_\t0\troot\t_\t_\n\n" * 40,
        lambda: f"1\tx\tx\t{ESC!r}\tN\t_\t0\troot\t_\t_\n2\ty\ty\tV\tV\t_\t0\troot\t_\t_\n\n".encode() * 40,
        lambda: lines_of(r),
        lambda: lines_of(r)[: r.randrange(1, 900)],
    ])()  # fmt: skip


def data(r: random.Random) -> Case:
    """A data file that is none."""
    with_data = [name for name in LINES if {"--data", "--corpus"} & set(line(name)) and name not in NO_RUN]
    name = r.choice(with_data)
    words = line(name)
    flag = "--data" if "--data" in words else "--corpus"
    own = words[words.index(flag) + 1]
    file = (
        f"bad{r.choice([Path(own).suffix, Path(own).suffix, '.csv', '.tsv', '.jsonl', '.txt', '.conllu', '.parquet'])}"
    )
    words[words.index(flag) + 1] = file
    kind = r.choice(("content",) * 12 + ("fifo", "folder", "zero", "loop", "null"))
    content = contents(r)

    def spoil(place: Path) -> None:
        path = place / file
        if kind == "content":
            path.write_bytes(content)
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "loop":
            path.symlink_to(path.name)
        else:
            path.symlink_to(f"/dev/{kind}")

    return Case(f"{kind} as data of {name}: {content[:60]!r}", words, spoil=spoil)


# --- models -----------------------------------------------------------------------------------------------------------


def places(plain: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the values of nested plain data are."""
    inside = plain.items() if isinstance(plain, dict) else enumerate(plain[:20]) if isinstance(plain, list) else ()
    return [path] * bool(path) + [p for key, value in inside for p in places(value, (*path, key))]


def changed(plain: Any, r: random.Random) -> Any:
    """Plain data with a value replaced, left out or added."""
    path = r.choice(places(plain) or [()])
    if not path:
        return r.choice(VALUES)
    inner = plain
    for key in path[:-1]:
        inner = inner[key]
    if r.random() < 0.15:
        del inner[path[-1]]
    else:
        inner[path[-1]] = r.choice(VALUES)
    return plain


def spoilt_json(path: Path, r: random.Random) -> None:
    """A JSON file that is damaged, odd, or not JSON."""
    how = r.random()
    if how < 0.8:
        plain = json.loads(path.read_text())
        for _ in range(r.choice((1, 1, 2))):
            plain = changed(plain, r)
        path.write_text(json.dumps(plain))
    elif how < 0.9:
        path.write_bytes(path.read_bytes()[: r.randrange(path.stat().st_size)])
    else:
        path.write_text(r.choice([NESTED, "", "null", "[]", "{}", "\0", '"x"', '{"a": ' * 50_000]))


def spoilt_weights(path: Path, r: random.Random) -> None:
    """Safetensors whose header or length is wrong."""
    content = bytearray(path.read_bytes())
    length = struct.unpack("<Q", content[:8])[0]
    how = r.randrange(5)
    if how == 0:
        content = content[: r.randrange(len(content))]
    elif how == 1:
        content[:8] = struct.pack("<Q", r.choice((0, 1, 2**63, 2**64 - 1, len(content) * 10)))
    elif how == 2:
        for _ in range(3):
            content[8 + r.randrange(min(length, len(content) - 8))] = r.randrange(256)
    elif how == 3:
        content += b"more"
    else:
        content = bytearray(r.randbytes(200))
    path.write_bytes(content)


ADAPTERS: tuple[Any, ...] = (
    {"peft_type": "LORA", "base_model_name_or_path": "base", "task_type": None, "r": 4, "target_modules": ["query"]},
    {"peft_type": "LORA", "base_model_name_or_path": ESC},
    {"peft_type": ESC, "base_model_name_or_path": "base"},
    {"peft_type": "LORA", "base_model_name_or_path": 7},
    {"peft_type": "LORA", "base_model_name_or_path": "bad"},
    {"peft_type": 3},
    [],
)


def model(r: random.Random) -> Case:
    """A model folder that is damaged, odd or hostile."""
    name = r.choice([n for n in LINES if n not in NO_RUN and n != "study recovery"])
    words = line(name)
    first = len(name.replace(" DECODER", "").split())
    own = words[first]
    words[first] = "bad"
    kind = r.choice(("config",) * 6 + ("tokenizer",) * 3 + ("tokenizer_config",) * 2
                    + ("weights", "weights", "index", "index", "gguf", "trainer", "adapter", "fifo", "type"))  # fmt: skip
    seed = r.getrandbits(32)

    def spoil(place: Path) -> None:
        import shutil

        own_r = random.Random(seed)
        bad = place / "bad"
        shutil.copytree(place / own, bad)
        if kind in ("config", "tokenizer", "tokenizer_config"):
            spoilt_json(bad / f"{kind}.json", own_r)
        elif kind == "weights":
            spoilt_weights(bad / "model.safetensors", own_r)
        elif kind == "index":
            shard = own_r.choice(("shard.bin", "../base/model.safetensors", "/etc/passwd.safetensors", "a.safetensors", 3, None, ESC,
                                  "\ud800.safetensors", "model.safetensors", "x" * 400 + ".safetensors"))  # fmt: skip
            (bad / "model.safetensors").rename(bad / own_r.choice(("shard.bin", "a.safetensors")))
            (bad / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": {"w": shard}}))
            if own_r.random() < 0.3:
                spoilt_json(bad / "model.safetensors.index.json", own_r)
        elif kind == "gguf":
            shutil.rmtree(bad)
            bad = place / "bad.gguf"
            bad.write_bytes(own_r.choice((b"", b"GGUF", b"GGUF\x03\0\0\0" + own_r.randbytes(200), own_r.randbytes(99))))
        elif kind == "trainer":
            (place / "steps").mkdir()
            bad.rename(
                place
                / "steps"
                / own_r.choice(("checkpoint-75", "checkpoint-x", f"checkpoint-{ESC[:4]}", "checkpoint-" + "9" * 200))
            )
            (place / "steps").rename(bad)
            (bad / "trainer_state.json").write_text(json.dumps({"best_model_checkpoint": own_r.choice(VALUES)}))
        elif kind == "adapter":
            for path in bad.iterdir():
                if not path.name.startswith("token"):
                    path.unlink()
            (bad / "adapter_config.json").write_text(json.dumps(own_r.choice(ADAPTERS)))
            (bad / "adapter_model.safetensors").write_bytes(own_r.randbytes(50))
        elif kind == "fifo":
            file = bad / own_r.choice(("config.json", "model.safetensors", "tokenizer.json"))
            file.unlink()
            os.mkfifo(file)
        else:
            plain = json.loads((bad / "config.json").read_text())
            plain["model_type"] = own_r.choice(
                ("t5", "bart", "vit", "mamba", "nosuch", ESC, "", "whisper", "clip", "opt", "rwkv")
            )
            (bad / "config.json").write_text(json.dumps(plain))

    words = [w if w != "bad" or kind != "gguf" else "bad.gguf" for w in words]
    return Case(f"{kind} of the model of {name} ({seed})", words, spoil=spoil)


# --- results ----------------------------------------------------------------------------------------------------------


def result(r: random.Random) -> Case:
    """A finished run whose files were changed, shown or made once more."""
    of = r.choice(DONE)
    place_name, seed = f"done-{of}", r.getrandbits(32)
    words = r.choice((["report", place_name], ["findings", place_name], [*line(of)[:-1], place_name]))
    how = r.choice(("json", "json", "signed", "signed", "signed", "arrays", "yaml", "fifo", "lock"))

    def spoil(place: Path) -> None:
        from stratoscope.core.files import digest

        own = random.Random(seed)
        target = place / place_name
        file = next(p for p in sorted(target.glob("*.json")) if not p.name.startswith("."))
        if how == "json":
            spoilt_json(file, own)
        elif how == "signed":  # odd values under a checksum that fits
            plain = changed(json.loads(file.read_text()), own)
            if isinstance(plain, dict):
                plain.pop("sha256", None)
                try:
                    plain["sha256"] = digest(plain, length=64)
                except ValueError:
                    plain["sha256"] = "none"
            file.write_text(json.dumps(plain))
        elif how == "arrays":
            beside = list(target.glob("*.safetensors")) or [file]
            spoilt_weights(beside[0], own)
        elif how == "yaml":
            (target / "run.yaml").write_bytes(contents(own))
        elif how == "fifo":
            file.unlink()
            os.mkfifo(file)
        else:
            (target / ".lock").write_bytes(own.randbytes(9))

    draw = words[0] == "report" and r.random() < 0.3
    return Case(f"{how} of {place_name} ({seed})", words, spoilt=(place_name,), spoil=spoil, draw=draw)


def protocol(r: random.Random) -> Case:
    """A run.yaml with odd keys and values."""
    of, seed = r.choice(DONE), r.getrandbits(32)

    def spoil(place: Path) -> None:
        import yaml

        own = random.Random(seed)
        plain = yaml.safe_load((place / f"done-{of}" / "run.yaml").read_text())
        keys = [
            *plain,
            "measures",
            "unit",
            "limit",
            "seed",
            "bootstrap",
            "layers",
            "name",
            "workers",
            "memory",
            "length",
            ESC,
        ]
        for _ in range(own.choice((1, 2))):
            plain[own.choice(keys)] = own.choice([v for v in VALUES if v != "\ud800"])
        text = yaml.safe_dump(plain)
        if own.random() < 0.2:
            text = own.choice(("&a [*a, *a]", "a: &a [1]\nb: [*a]\n" * 3, "!!python/object/apply:os.system ['true']", "a: b: c", "\t", NESTED[:5000],
                               "? [1]\n: 2", "2001-99-99: 1", "[1,2]", "''", "x" * 5000))  # fmt: skip
        (place / "bad.yaml").write_text(text)

    return Case(f"run.yaml of {of} ({seed})", [*of.split(), "--config", "bad.yaml", "--out", "run"], spoil=spoil)


def folder(r: random.Random) -> Case:
    """A run folder that is none of ours, or holds what we would write."""
    name = r.choice([n for n in LINES if n not in NO_RUN])
    how = r.choice(("file", "parts", "result", "lock", "link", "dangling", "own", "fifo"))

    def spoil(place: Path) -> None:
        run = place / "precious" if how == "own" else place / "run"
        if how == "file":
            run.write_text("a file")
        elif how == "dangling":
            run.symlink_to("nowhere")
        elif how == "link":
            run.symlink_to("precious")
        elif how == "fifo":
            os.mkfifo(run)
        elif how != "own":
            run.mkdir()
            for file in {
                "parts": ("parts/mine",),
                "result": ("result.json", "cut.json", "report.html"),
                "lock": (".lock",),
            }[how]:
                (run / file).parent.mkdir(exist_ok=True)
                (run / file).write_text("mine")

    words = line(name)
    if how == "own":
        words[-1] = "precious"
    return Case(f"{how} as the run folder of {name}", words, spoil=spoil)
