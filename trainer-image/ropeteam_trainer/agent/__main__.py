"""`python -m ropeteam_trainer.agent -- command...`"""

import sys

from ropeteam_trainer.agent.main import main

sys.exit(main())
