"""The launching half: what a run is resolved to, how its ranks are started and watched, how they end."""
