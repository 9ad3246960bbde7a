"""Networks: layers, encoders, actor-critics, recurrent cores."""
