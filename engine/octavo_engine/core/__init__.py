"""The core: its loop over scheduler and runner, and the thread that it runs on."""
