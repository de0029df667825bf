package command

import (
	"encoding/json"
	"fmt"
	"io"
)

// jsonFile is where the report goes. The zero value is nowhere.
type jsonFile struct {
	file     *outFile // nil: none
	w        io.Writer
	toStdout bool
}

// openJSON opens the file before the run.
func openJSON(path string, stdout io.Writer) (*jsonFile, error) {
	switch path {
	case "":
		return &jsonFile{}, nil
	case "-":
		return &jsonFile{w: stdout, toStdout: true}, nil
	}
	file, err := openOut("json", path)
	if err != nil {
		return nil, err
	}
	return &jsonFile{file: file, w: file}, nil
}

// write replaces what the file holds by v.
func (j *jsonFile) write(v any) error {
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

func (j *jsonFile) close() error { return j.file.close() }
