"""Tiny data in the layouts that programs read: `python tiny.py KIND FOLDER [NUMBER]`. Noise, always the same.

    mnist      torchvision's MNIST/raw files below FOLDER, also as if they had been downloaded
    images     FOLDER/train and FOLDER/val with two classes of NUMBER pictures each, 64 x 64 JPEG
    text       FOLDER/train.txt, valid.txt, test.txt with NUMBER lines of words
    cifar      torchvision's cifar-10-batches-py below FOLDER, NUMBER pictures; checksums do not fit
    cifar100   torchvision's cifar-100-python, the same
    jsonl      FOLDER/train.jsonl with NUMBER rows of a text
    glue       a dataset FOLDER of sentence pairs in the files of nyu-mll/glue, configuration mrpc
    metric     FOLDER/glue.py, a metric for evaluate.load("glue", ...)
    bert       a tiny BERT and its tokenizer, for transformers
    llama      a tiny Llama and its tokenizer
Limits: numpy, Pillow and transformers are needed by the kinds that use them.
"""

from __future__ import annotations

import json
import pickle
import random
import struct
import sys
from pathlib import Path

VOCABULARY = [
    "the",
    "a",
    "rope",
    "climbs",
    "over",
    "under",
    "small",
    "large",
    "stone",
    "river",
    "and",
    "then",
    "again",
]


def mnist(folder: Path, number: int) -> None:
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    chance = random.Random(1)
    for part, count in (("train", number), ("t10k", max(number // 10, 1))):
        images = struct.pack(">IIII", 2051, count, 28, 28) + chance.randbytes(count * 28 * 28)
        labels = struct.pack(">II", 2049, count) + bytes(chance.randrange(10) for _ in range(count))
        for name, data in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
            (raw / name).write_bytes(data)


def images(folder: Path, number: int) -> None:
    from PIL import Image

    chance = random.Random(2)
    for part in ("train", "val"):
        for name in ("cat", "dog"):
            place = folder / part / name
            place.mkdir(parents=True)
            for index in range(number if part == "train" else max(number // 4, 4)):
                picture = Image.frombytes("RGB", (64, 64), chance.randbytes(3 * 64 * 64))
                picture.save(place / f"{name}_{index}.jpg")


def text(folder: Path, number: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(3)
    for part in ("train", "valid", "test"):
        lines = (" ".join(chance.choices(VOCABULARY, k=12)) for _ in range(number))
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n")


def cifar(folder: Path, number: int) -> None:
    import numpy

    place = folder / "cifar-10-batches-py"
    place.mkdir(parents=True)
    chance = numpy.random.default_rng(4)
    for name in [f"data_batch_{index}" for index in range(1, 6)] + ["test_batch"]:
        data = chance.integers(0, 256, (number // 5, 3072), dtype="uint8")
        labels = chance.integers(0, 10, number // 5).tolist()
        (place / name).write_bytes(pickle.dumps({"data": data, "labels": labels}))
    (place / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))


def cifar100(folder: Path, number: int) -> None:
    import numpy

    place = folder / "cifar-100-python"
    place.mkdir(parents=True)
    chance = numpy.random.default_rng(4)
    for name in ("train", "test"):
        data = chance.integers(0, 256, (number, 3072), dtype="uint8")
        labels = chance.integers(0, 100, number).tolist()
        (place / name).write_bytes(pickle.dumps({"data": data, "fine_labels": labels}))
    (place / "meta").write_bytes(pickle.dumps({"fine_label_names": [str(index) for index in range(100)]}))


def jsonl(folder: Path, number: int) -> None:
    folder.mkdir(parents=True)
    chance = random.Random(6)
    rows = ({"text": " ".join(chance.choices(VOCABULARY, k=20))} for _ in range(number))
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def glue(folder: Path, number: int) -> None:
    place = folder / "mrpc"
    place.mkdir(parents=True)
    chance = random.Random(5)
    files = []
    for part, count in (("train", number), ("validation", number // 4), ("test", number // 4)):
        rows = [
            {
                "sentence1": " ".join(chance.choices(VOCABULARY, k=9)),
                "sentence2": " ".join(chance.choices(VOCABULARY, k=9)),
                "label": index % 2,
                "idx": index,
            }
            for index in range(count)
        ]
        (place / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        files.append(f"  - split: {part}\n    path: mrpc/{part}.jsonl\n")
    head = "---\nconfigs:\n- config_name: mrpc\n  data_files:\n" + "".join(files) + "---\n"
    (folder / "README.md").write_text(head)


METRIC = """
import datasets
import evaluate
class Glue(evaluate.Metric):
    def _info(self):
        kinds = datasets.Features({each: datasets.Value("int64") for each in ("predictions", "references")})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=kinds)
    def _compute(self, predictions, references):
        return {"accuracy": sum(int(a == b) for a, b in zip(predictions, references)) / len(references)}
"""


def metric(folder: Path, _: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "glue.py").write_text(METRIC)


def bert(folder: Path, _: int) -> None:
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *VOCABULARY]))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    BertForSequenceClassification(BertConfig(vocab_size=len(VOCABULARY) + 5, **shape)).save_pretrained(folder)


def llama(folder: Path, _: int) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    indices = {token: index for index, token in enumerate(["<s>", "</s>", "<unk>", *VOCABULARY])}
    own = Tokenizer(WordLevel(indices, unk_token="<unk>"))
    own.pre_tokenizer = Whitespace()
    marks = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=own, **marks).save_pretrained(folder)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=64, **shape)).save_pretrained(folder)


KINDS = {
    each.__name__: each for each in (mnist, images, text, cifar, cifar100, jsonl, glue, metric, bert, llama)
}

if __name__ == "__main__":
    KINDS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1000)
