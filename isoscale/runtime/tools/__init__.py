"""Commands that run whole jobs and judge them: verify, replay, check, profile.

Start jobs through `coordinator`, compare what they leave behind. Print nothing.
"""
