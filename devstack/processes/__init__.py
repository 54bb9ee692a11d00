"""Child processes of a local stack: started, watched, ended with their parent; their ports, logs and pid files."""
