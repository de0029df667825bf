package ycsb_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// moduleMain is the main package of a go-ycsb with databases of its own.
const moduleMain = `package main

import (
	"fmt"

	_ "drtmx/ycsb"

	_ "github.com/pingcap/go-ycsb/db/basic"
	_ "github.com/pingcap/go-ycsb/db/mysql"
	"github.com/pingcap/go-ycsb/pkg/ycsb"
)

func main() { fmt.Println(ycsb.GetDBCreator("drtmx") != nil) }
`

// TestImportInAnotherModule: go mod tidy and go build accept the import of this
// package in a module that requires go-ycsb, too. The module needs packages that this
// one does not, so without a module proxy nothing is tested, and go test -v has a line
// that says so.
func TestImportInAnotherModule(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED, nothing was tested: go mod tidy and go build of another module take too long for -short")
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	mod := "module example.com/mine\n\ngo 1.26\n\nrequire (\n\tdrtmx v0.0.0\n\tgithub.com/pingcap/go-ycsb v1.0.1\n)\n\nreplace drtmx => " + root + "\n"
	for name, text := range map[string]string{"go.mod": mod, "main.go": moduleMain} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"mod", "tidy"}, {"build", "-o", "mine", "."}} {
		c := exec.CommandContext(t.Context(), "go", args...)
		c.Dir, c.Env = dir, append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
		out, err := c.CombinedOutput()
		if text := string(out); err != nil && (strings.Contains(text, "dial tcp") || strings.Contains(text, "module lookup disabled")) {
			t.Skipf("SKIPPED, nothing was tested: go %s needs modules that are not on this machine, and no module proxy answers: %s", strings.Join(args, " "), text)
		}
		if err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	if out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "mine")).Output(); err != nil || string(out) != "true\n" {
		t.Errorf("the program says %q, %v", out, err)
	}
}
