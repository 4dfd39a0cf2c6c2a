#!/usr/bin/env python
"""Generation and LoRA gradients of a Llama model by PyTorch, transformers and PEFT: the peer's side of
`bench/language_model.py`.

Weights are random, of the sizes that the other side names; float32, eager, PyTorch's own number of threads.
Needs in this interpreter: torch transformers peft
"""

import sys
import time
from pathlib import Path

# Loaded by itself: this interpreter need not have our package.
sys.path.insert(0, str(Path(__file__).parents[2] / "jaxmarl_llm" / "benchmark"))
from serve import serve


def prepare(settings):
    import torch
    import transformers

    start = time.perf_counter()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**settings["model"])
    model = transformers.LlamaForCausalLM(config).eval()
    batch, length = settings["batch"], settings["length"]
    description = {
        "machine": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "threads": torch.get_num_threads(),
        }
    }
    if settings["what"] == "generate":
        tokens = torch.randint(3, config.vocab_size, (batch, length))
        if settings["group"] > 1:
            tokens = tokens[: batch // settings["group"]].repeat_interleave(settings["group"], 0)
        steps = settings["new_tokens"]

        def run(seed):
            torch.manual_seed(seed)
            start = time.perf_counter()
            with torch.inference_mode():
                out = model.generate(
                    tokens,
                    attention_mask=torch.ones_like(tokens),
                    min_new_tokens=steps,
                    max_new_tokens=steps,
                    do_sample=True,
                    temperature=1.0,
                    top_k=0,
                    top_p=1.0,
                    pad_token_id=0,
                )
            assert out.shape == (batch, length + steps)
            return {"seconds": time.perf_counter() - start, "checksum": int(out.sum())}

        count = batch * steps
    else:
        import peft

        description["machine"]["peft"] = peft.__version__
        lora = peft.LoraConfig(r=settings["rank"], lora_alpha=8, target_modules=["q_proj", "v_proj"])
        model = peft.get_peft_model(model, lora)
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        tokens = torch.randint(3, config.vocab_size, (batch, length))

        def run(seed):
            for weight in trained:
                weight.grad = None
            start = time.perf_counter()
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
            loss.backward()
            seconds = time.perf_counter() - start
            total = sum(float(weight.grad.abs().sum()) for weight in trained)
            return {"seconds": seconds, "checksum": float(loss) + total}

        count = batch * length
    return description | {"compile_s": time.perf_counter() - start, "steps": count}, run


if __name__ == "__main__":
    serve(prepare)
