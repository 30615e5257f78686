"""A cluster without Ray: every task runs at once, here, in the order of its stage."""

import json

from saffu.cluster.engine import Cluster, as_json, called, keep


class InProcess(Cluster):
    def __init__(self, folder, processors=3):
        self.folder, self.cpus, self.ran = folder, processors, []

    @property
    def processors(self):
        return self.cpus

    def map(self, stage, work, items, title, unit=""):
        place = self.folder / stage
        place.mkdir(parents=True, exist_ok=True)
        kept = [place / f"{number:06d}.json" for number in range(len(items))]
        for path, item in zip(kept, items, strict=True):
            if not path.exists():
                keep(path, called(work.__module__, work.__qualname__, as_json(item)))
                self.ran.append(stage)
        return [json.loads(path.read_bytes()) for path in kept]
