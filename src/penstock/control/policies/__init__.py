"""The policies: each looks at the vitals of one step and decides what should change."""
