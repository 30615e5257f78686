"""The lab: searches, studies, and verdicts on the results of this repository, and the pages that show them."""
