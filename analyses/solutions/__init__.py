"""Which solution do models find, over a grid of designs, initialisations, decays, depths and seeds?"""
