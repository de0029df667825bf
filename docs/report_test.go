package docs

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	"drtmx/tpcc/bench"
)

// Every field of the report of a run is in its table.
func TestReportIsDescribed(t *testing.T) {
	_, section, ok := strings.Cut(read(t, "operations.md"), "\n## The report\n")
	if !ok {
		t.Fatal("operations.md does not describe the report")
	}
	section, _, _ = strings.Cut(section, "\n### ")
	described := map[string]bool{}
	for _, m := range regexp.MustCompile("`([a-z0-9_]+)(?:\\{[^`]*)?`").FindAllStringSubmatch(section, -1) {
		described[m[1]] = true
	}
	seen := map[reflect.Type]bool{}
	var visit func(typ reflect.Type)
	visit = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			visit(typ.Elem())
			return
		case reflect.Struct:
		default:
			return
		}
		if seen[typ] {
			return
		}
		seen[typ] = true
		for _, f := range reflect.VisibleFields(typ) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" || name == "-" {
				continue
			}
			if !described[name] {
				t.Errorf("operations.md does not describe %s of the report (%s.%s)", name, typ, f.Name)
			}
			visit(f.Type)
		}
	}
	visit(reflect.TypeFor[bench.Report]())
	if len(seen) < 3 {
		t.Errorf("found %d types", len(seen))
	}
}
