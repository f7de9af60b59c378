"""Circuits from the weights of attention heads, in factored form: what each reads and writes, how two compose."""
