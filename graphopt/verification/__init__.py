"""The oracle: do two models compute the same?"""
