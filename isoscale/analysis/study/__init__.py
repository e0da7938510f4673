"""The study of a cluster: from any trace to tables, figures, a page and what to change.

readers/     one per format: files -> Trace, every line accounted for
trace        the one canonical form: jobs, attempts, devices over time, machines, utilisation
subjects/    one table family each: Trace -> Finding (figures for JSON, tables for people)
advice       the study's guidelines as checks with numbers
what_if      the trace under the present policy and ours, in the simulator
analysis     everything together; compare, document, pictures, page
"""
