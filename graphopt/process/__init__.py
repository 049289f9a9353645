"""Child processes: started from a fork server, with limits on time and memory, and measured."""
