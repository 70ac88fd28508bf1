# SPDX-License-Identifier: MIT
"""``bagua-net bench``: collectives between processes, over this network and over others in turn.

The commands' options are in ``_cli.bench``; ``run`` is one invocation. The parts, lowest first:

- ``workload``: the options as one value that travels to every rank (``config``), models' gradients, operations, test
  data, and the figures of one row (``result``).
- ``transports``: the networks. ``base`` is what each must offer, ``registry`` lists them.
- ``ranks``: which ranks live here (``placement``), their child processes (``launch``), the life of one (``process``),
  how they meet (``rendezvous``), rounds and timing (``measure``).
- ``output``: the rows as table (``report``), sentences (``summary``), JSON (``record``) and picture (``plot``).
- ``calculation``: what a step would take over a link, by formula.
"""
