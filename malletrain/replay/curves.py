"""Published throughputs, small enough to ship: what `--mix` and workload files without curves train.

IMAGENET: training throughput in images/s of seven ImageNet models on 1-64 nodes of OLCF Summit (6 V100 each), as
measured for Liu et al., BFTrainer (arXiv 2106.12091); figures of github.com/BFTrainer/Replayer.
POLLUX: samples/s at the best batch size a GPU on 1-16 nodes of 4 T4 each, and the samples of a whole training
(progress at the smallest batch times that batch), as measured for Qiao et al., Pollux (OSDI 2021);
github.com/petuum/adaptdl, branch osdi21-artifact, Apache-2.0.
"""

from __future__ import annotations

from collections.abc import Mapping

from malletrain.domain.job import Curve

_IMAGENET_NODES = (1, 2, 4, 8, 16, 32, 64)
_IMAGENET = {
    "AlexNet": (7115.3, 13071.7, 21066.1, 40484.9, 74002.9, 130762.0, 202135.4),
    "DenseNet": (989.9, 1952.5, 3849.8, 7608.1, 14993.2, 28812.2, 57773.9),
    "mnasnet1": (3245.7, 6001.9, 11489.3, 23075.6, 43899.7, 83474.2, 160493.6),
    "mobilenet": (3039.9, 5893.0, 11386.0, 22024.8, 42488.4, 82268.3, 155213.8),
    "resnet18": (5218.8, 10582.5, 20436.0, 39584.0, 78023.8, 144762.5, 262723.0),
    "shufflenet": (2831.0, 5259.0, 9988.0, 20379.2, 38895.3, 74125.1, 145081.5),
    "vgg16": (1193.3, 2389.2, 4691.7, 9257.9, 18348.9, 36208.5, 70151.7),
}

_POLLUX_NODES = (1, 2, 3, 4, 6, 8, 12, 16)
_POLLUX = {
    "bert": (50.151, 37.811, 82.172, 101.684, 151.994, 187.795, 294.290, 344.160),
    "cifar10": (5214.936, 9710.670, 14669.872, 19193.895, 28558.211, 37007.703, 44310.025, 35168.567),
    "deepspeech2": (129.774, 238.255, 359.128, 441.801, 568.145, 764.800, 605.168, 650.797),
    "imagenet": (795.999, 1576.528, 2351.096, 3082.672, 4540.153, 6053.115, 9009.986, 11776.628),
    "ncf": (1848945.636, 762752.781, 1223214.497, 1066221.356, 991587.126, 854462.616, 669246.0, 739234.51),
    "yolov3": (84.174, 69.606, 139.225, 174.859, 150.008, 165.520, 262.013, 345.299),
}

#: Samples of a whole training of each Pollux application.
POLLUX_SAMPLES: Mapping[str, float] = {
    "bert": 14774 * 12.0,
    "cifar10": 39063 * 128.0,
    "deepspeech2": 28536 * 20.0,
    "imagenet": 576526 * 200.0,
    "ncf": 194174 * 256.0,
    "yolov3": 103444 * 8.0,
}

IMAGENET: Mapping[str, Curve] = {
    name: Curve(tuple(zip(_IMAGENET_NODES, rates, strict=True))) for name, rates in _IMAGENET.items()
}
POLLUX: Mapping[str, Curve] = {
    name: Curve(tuple(zip(_POLLUX_NODES, rates, strict=True))) for name, rates in _POLLUX.items()
}


def curve_named(model: str) -> Curve | None:
    """The published curve of a model, whatever its case; ImageNet models first."""
    for table in (IMAGENET, POLLUX):
        for name, curve in table.items():
            if name.lower() == model.lower():
                return curve
    return None
