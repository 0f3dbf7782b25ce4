"""Bounded local and global minimisation of native functions; knows no physics and imports nothing else of ours."""

from knuckle.optim.adam import Adam
from knuckle.optim.basin_hopping import BasinHopping, basin_hopping
from knuckle.optim.distributed import Ray
from knuckle.optim.lbfgsb import LBFGSB
from knuckle.optim.levenberg_marquardt import LevenbergMarquardt
from knuckle.optim.local import LocalSolver
from knuckle.optim.population import Population, population_search
from knuckle.optim.problem import LeastSquares, Problem, Smooth, Stochastic
from knuckle.optim.result import Result, Searches, Status
from knuckle.optim.rounds import Progress
from knuckle.optim.workers import opened

__all__ = [
    "LBFGSB",
    "Adam",
    "BasinHopping",
    "LeastSquares",
    "LevenbergMarquardt",
    "LocalSolver",
    "Population",
    "Problem",
    "Progress",
    "Ray",
    "Result",
    "Searches",
    "Smooth",
    "Status",
    "Stochastic",
    "basin_hopping",
    "opened",
    "population_search",
]
