"""The changelog: three kinds of records, their bytes, and the fold that turns a log into what is pending. Pure."""
