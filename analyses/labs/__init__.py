"""Labs: a few settings, each trained with several seeds and watched while it learns; what their commands share."""
