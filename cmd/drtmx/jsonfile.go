package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// jsonFile is where the report goes.
type jsonFile struct {
	f        *os.File
	w        io.Writer
	toStdout bool
	fresh    bool // made by this command
	written  bool
}

// openJSON opens the file before the run, so that a path that cannot be
// written costs nobody a run. What it holds stays until the report replaces it.
func openJSON(path string, stdout io.Writer) (*jsonFile, error) {
	switch path {
	case "":
		return &jsonFile{}, nil
	case "-":
		return &jsonFile{w: stdout, toStdout: true}, nil
	}
	_, err := os.Lstat(path)
	fresh := os.IsNotExist(err)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("--json: want a file that can be written: %w", err)
	}
	return &jsonFile{f: f, w: f, fresh: fresh}, nil
}

// write replaces what the file holds by v.
func (j *jsonFile) write(v any) error {
	if j.w == nil {
		return nil
	}
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("--json: %w", err)
	}
	if j.f != nil {
		_ = j.f.Truncate(0) // a pipe or a device has nothing to truncate
	}
	if _, err := j.w.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("--json: %w", err)
	}
	j.written = true
	return nil
}

func (j *jsonFile) close() error {
	if j.f == nil {
		return nil
	}
	if j.fresh && !j.written {
		_ = os.Remove(j.f.Name()) // an empty file would look like a report
	}
	if err := j.f.Close(); err != nil {
		return fmt.Errorf("--json: %w", err)
	}
	return nil
}
