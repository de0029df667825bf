package lint

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The table of layers in docs/architecture.md is the one of this package: each package
// once, at its layer, in the order of layers.
func TestArchitectureShowsTheLayers(t *testing.T) {
	text, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^\| (\d+) \| (.*?) \| .* \|$`).FindAllStringSubmatch(string(text), -1)
	shown, last := map[string]bool{}, 0
	for _, row := range rows {
		layer, err := strconv.Atoi(row[1])
		if err != nil {
			t.Fatal(err)
		}
		if layer < last {
			t.Errorf("the row of %s, of layer %d, comes after one of layer %d", row[2], layer, last)
		}
		last = layer
		for _, name := range strings.Split(row[2], ", ") {
			name = strings.Trim(name, "`")
			want, known := layers[name]
			switch {
			case !known:
				t.Errorf("there is no package %s", name)
			case want != layer:
				t.Errorf("package %s is shown at layer %d, and is at layer %d", name, layer, want)
			case shown[name]:
				t.Errorf("package %s is shown twice", name)
			}
			shown[name] = true
		}
	}
	for name, layer := range layers {
		if !shown[name] {
			t.Errorf("package %s, of layer %d, is not shown", name, layer)
		}
	}
}

// The packages that choose a provider are those that docs/architecture.md names.
func TestArchitectureNamesThoseThatChooseProviders(t *testing.T) {
	text, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "\nOnly ")
	sentence, _, ok := strings.Cut(after, "choose a provider")
	if !ok {
		t.Fatal("docs/architecture.md does not say which packages choose a provider")
	}
	for _, pkg := range mayChooseProvider {
		if !strings.Contains(sentence, "`"+pkg+"`") {
			t.Errorf("it does not name %s", pkg)
		}
	}
	if n := strings.Count(sentence, "`"); n != 2*len(mayChooseProvider) {
		t.Errorf("it names %d packages, want %d: %s", n/2, len(mayChooseProvider), sentence)
	}
}
