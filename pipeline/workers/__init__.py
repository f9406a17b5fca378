"""Ray actors around the front end and the engine, and the handle the driver works with. The only importer of ray."""

from pipeline.workers.front_ends import FreeFrontEnd
from pipeline.workers.keeper import Keeping
from pipeline.workers.runtime import lost_part, start_ray
from pipeline.workers.workers import Workers

__all__ = ["FreeFrontEnd", "Keeping", "Workers", "lost_part", "start_ray"]
