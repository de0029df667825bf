package cli

import (
	"encoding/json"
	"fmt"
	"io"
)

// JSONFile is where a report goes. The zero value is nowhere.
type JSONFile struct {
	file     *OutFile // nil: none
	w        io.Writer
	ToStdout bool
}

// OpenJSON opens the file of --json before the run: - is stdout, and no path is nowhere.
func OpenJSON(path string, stdout io.Writer) (*JSONFile, error) {
	switch path {
	case "":
		return &JSONFile{}, nil
	case "-":
		return JSONTo(stdout), nil
	}
	file, err := OpenOut("json", path)
	if err != nil {
		return nil, err
	}
	return &JSONFile{file: file, w: file}, nil
}

// JSONTo is standard output.
func JSONTo(stdout io.Writer) *JSONFile { return &JSONFile{w: stdout, ToStdout: true} }

// Put replaces what the file holds by v.
func (j *JSONFile) Put(v any) error {
	if j.w == nil {
		return nil
	}
	b, err := json.MarshalIndent(v, "", "  ")
	if err == nil {
		_, err = j.w.Write(append(b, '\n'))
	}
	if err != nil && j.file == nil {
		return fmt.Errorf("--json: %w", err)
	}
	return err
}

// Close ends a file that Put has written, and removes a new one that it has not.
func (j *JSONFile) Close() error { return j.file.Close() }
