package goruntime

import (
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"os"
	"runtime"
	"strings"
	"testing"
)

// made is the version of Go that the edits are made for.
const made = "go1.26"

// TestOverlay: the edits fit the version of Go that runs the test, and leave Go
// files.
func TestOverlay(t *testing.T) {
	path, err := Overlay(t.TempDir(), map[string]string{"/a.go": "/b.go"})
	if errors.Is(err, ErrVersion) && !strings.HasPrefix(runtime.Version(), made) {
		t.Skipf("the overlay is made for %s, this is %s: clusters cannot be simulated", made, runtime.Version())
	}
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Replace map[string]string }
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if got.Replace["/a.go"] != "/b.go" {
		t.Errorf("%v has not the file of the caller", got.Replace)
	}
	for from, to := range got.Replace {
		if from == "/a.go" {
			continue
		}
		if !strings.Contains(from, "/src/") {
			t.Errorf("%s is no file of Go's library", from)
		}
		if _, err := parser.ParseFile(token.NewFileSet(), to, nil, parser.SkipObjectResolution); err != nil {
			t.Errorf("%s: %v", from, err)
		}
	}
}
