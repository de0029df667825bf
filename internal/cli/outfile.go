package cli

import (
	"fmt"
	"os"
)

// OutFile is a file that a command writes at its end. A nil one is none.
type OutFile struct {
	flag    string // that names it
	f       *os.File
	fresh   bool // made by this command
	written bool
}

// OpenOut opens a file before the work, so that a path that cannot be written
// costs nobody a run. What it holds stays until the first Write. The error names the flag.
func OpenOut(flag, path string) (*OutFile, error) {
	_, err := os.Lstat(path)
	fresh := os.IsNotExist(err)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("--%s: want a file that can be written: %w", flag, err)
	}
	return &OutFile{flag: flag, f: f, fresh: fresh}, nil
}

// Write appends; the first call replaces what the file held.
func (o *OutFile) Write(b []byte) (int, error) {
	if !o.written {
		_ = o.f.Truncate(0) // a pipe or a device has nothing to truncate
	}
	n, err := o.f.Write(b)
	if err != nil {
		return n, fmt.Errorf("--%s: %w", o.flag, err)
	}
	o.written = true
	return n, nil
}

// Close removes a new file that is empty: it would look like a result.
func (o *OutFile) Close() error {
	if o == nil {
		return nil
	}
	if o.fresh && !o.written {
		_ = os.Remove(o.f.Name())
	}
	if err := o.f.Close(); err != nil {
		return fmt.Errorf("--%s: %w", o.flag, err)
	}
	return nil
}
