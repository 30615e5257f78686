"""Language models made by saffu, for transformers. This file needs saffu with its extra `hf`.

    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)

The folder is a saffu model folder, and saffu computes everything; this file is only an adapter. The model's counts are
not torch parameters: they are neither cast nor moved nor trained. `model.to(device)` sets the device of the results.
"""

import copy
import shutil
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

from saffu.model.transformers.predictor import Predictor

EOD = 3  # the ids below it, <pad>, <sod>, and <frg>, are never predicted
CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"


class SaffuConfig(PretrainedConfig):
    """The contents of a saffu model's config.json."""

    model_type = "saffu"

    def __init__(self, vocab_size: int = 0, hidden_size: int = 0, **others: Any):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        others.pop("checksums", None)  # of files that transformers may replace
        super().__init__(**others)


class SaffuPreTrainedModel(PreTrainedModel):
    """Loading and saving."""

    config_class = SaffuConfig

    def __init__(self, config: SaffuConfig, predictor: Predictor | None = None):
        super().__init__(config)
        self.predictor = predictor or Predictor(Path(config.name_or_path))
        self.register_buffer("anchor", torch.zeros(()), persistent=False)  # only its device matters
        self.post_init()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **options: Any) -> Any:
        """Load an exported folder, or one on the Hub. Options about weights, such as dtypes, have no effect."""
        folder = Path(pretrained_model_name_or_path)
        if not folder.is_dir():
            names = ("revision", "cache_dir", "token", "local_files_only", "force_download")
            source = {name: options[name] for name in names if options.get(name) is not None}
            folder = Path(snapshot_download(str(pretrained_model_name_or_path), **source))
        folder = folder / (options.get("subfolder") or "")
        config = options.get("config")
        if not isinstance(config, SaffuConfig):
            config = SaffuConfig.from_pretrained(folder)
        model: Any = cls(config, Predictor(folder)).eval()
        if model.can_generate():
            model.generation_config = GenerationConfig.from_pretrained(folder)
        return (model, {}) if options.get("output_loading_info") else model

    def save_pretrained(self, save_directory: Any, *args: Any, push_to_hub: bool = False, **options: Any) -> None:
        """Copy the folder that the model was loaded from; the configurations are saved as they are now."""
        target = Path(save_directory)
        target.mkdir(parents=True, exist_ok=True)
        for path in self.predictor.folder.iterdir():
            if path.is_file() and path.name not in (CONFIG, GENERATION_CONFIG) and not path.name.startswith("."):
                copied = target / path.name
                if not (copied.exists() and copied.samefile(path)):
                    shutil.copyfile(path, copied)
        self.config.save_pretrained(target)
        if self.can_generate():
            self.generation_config.save_pretrained(target)
        if push_to_hub:
            self.push_to_hub(options.pop("repo_id", target.name), **options)

    def __deepcopy__(self, memo: Any) -> Any:
        """The model itself never changes, so a copy shares it."""
        copied = type(self)(copy.deepcopy(self.config, memo), self.predictor).train(self.training).to(self.device)
        if self.can_generate():
            copied.generation_config = copy.deepcopy(self.generation_config, memo)
        return copied

    @property
    def device(self) -> torch.device:
        return self.anchor.device

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def num_parameters(self, *args: Any, **options: Any) -> int:
        """The number of stored values that predictions depend on."""
        return self.predictor.model.size

    def inputs(self, input_ids: Tensor | None, attention_mask: Tensor | None) -> Any:
        """Token ids (B, T), and whether each is to be read. Of a mask (B, …, T, T) the last row is taken."""
        if input_ids is None:
            raise ValueError("a saffu model reads token ids; pass input_ids")
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        if real.ndim > 2:
            real = real.flatten(1, -2)[:, -1]
        return input_ids.cpu().numpy(), real.cpu().numpy() > 0


class SaffuModel(SaffuPreTrainedModel):
    """Hidden states, for classifiers on top of the model; see `saffu.model.transformers.predictor.Predictor.hidden`."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_dict: bool | None = None,
        output_hidden_states: bool | None = None,
        **others: Any,
    ) -> Any:
        """`last_hidden_state` (B, T, hidden_size)."""
        hidden = self.predictor.hidden(*self.inputs(input_ids, attention_mask)).to(self.device)
        if return_dict is False:
            return (hidden,)
        return BaseModelOutput(last_hidden_state=hidden, hidden_states=(hidden,) if output_hidden_states else None)


class SaffuForCausalLM(SaffuPreTrainedModel, GenerationMixin):
    """Log-probabilities of the next token. There is no cache: the state of a document holds everything needed."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        output_hidden_states: bool | None = None,
        **others: Any,
    ) -> Any:
        """Logits (B, T, N), or only of the last `logits_to_keep` positions; with labels (B, T), their mean loss.

        Labels below `<eod>`, which are never predicted, are ignored like −100.
        """
        ids, real = self.inputs(input_ids, attention_mask)
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep.cpu().numpy()
        logits = self.predictor.logits(ids, real, keep).to(self.device)
        loss, hidden = None, None
        if labels is not None:
            targets = labels[:, 1:].masked_fill(labels[:, 1:] < EOD, -100).to(self.device)
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten())
        if output_hidden_states:
            hidden = (self.predictor.hidden(ids, real).to(self.device),)
        if return_dict is False:
            return (logits,) if loss is None else (loss, logits)
        return CausalLMOutput(loss=loss, logits=logits, hidden_states=hidden)

    def prepare_inputs_for_generation(self, input_ids: Tensor, attention_mask: Any = None, **others: Any) -> Any:
        """All tokens each time."""
        kept = others.get("logits_to_keep") or 0
        return {"input_ids": input_ids, "attention_mask": attention_mask, "logits_to_keep": kept}

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False
