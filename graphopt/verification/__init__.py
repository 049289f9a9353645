"""The verifier: do two models compute the same?"""
