"""The SDK's pure machines and values: no I/O, no clock, no thread.

Other packages may import this folder: the simulator and the lean clients of the experiments run these very machines.
"""
