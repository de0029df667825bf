package server

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// difference names the first place where two catalogues in JSON differ, and what
// each of them has there: a catalogue is too long for an error.
func difference(have, want []byte) (place, had, wanted string) {
	var a, b any
	if json.Unmarshal(have, &a) != nil || json.Unmarshal(want, &b) != nil {
		return "catalogue", "one that cannot be read", "another"
	}
	path, x, y := differ(a, b)
	if path == nil {
		path = []string{"catalogue"}
	}
	return strings.Join(path, ", "), short(x), short(y)
}

// differ returns the path to the first difference below two values, and what is
// there, nil for nothing. Elements of lists are named by their names, or by their
// numbers. The path is nil if the values themselves differ.
func differ(a, b any) (path []string, x, y any) {
	switch a := a.(type) {
	case map[string]any:
		m, ok := b.(map[string]any)
		if !ok {
			return nil, a, b
		}
		both := maps.Clone(a)
		maps.Copy(both, m)
		for _, k := range slices.Sorted(maps.Keys(both)) {
			if path, x, y := differ(a[k], m[k]); x != nil || y != nil {
				return append([]string{k}, path...), x, y
			}
		}
		return nil, nil, nil
	case []any:
		l, ok := b.([]any)
		if !ok {
			return nil, a, b
		}
		for i := range max(len(a), len(l)) {
			var p, q any
			if i < len(a) {
				p = a[i]
			}
			if i < len(l) {
				q = l[i]
			}
			path, x, y := differ(p, q)
			if x == nil && y == nil {
				continue
			}
			if nameIn(p) != nameIn(q) {
				return []string{fmt.Sprint("number ", i+1)}, p, q
			}
			name := nameIn(p)
			if name == "" {
				name = fmt.Sprint("number ", i+1)
			}
			return append([]string{name}, path...), x, y
		}
		return nil, nil, nil
	}
	switch b.(type) {
	case map[string]any, []any: // which cannot be compared
		return nil, a, b
	}
	if a == b {
		return nil, nil, nil
	}
	return nil, a, b
}

// nameIn is the name of a table, a column or an index.
func nameIn(v any) string {
	m, _ := v.(map[string]any)
	name, _ := m["name"].(string)
	return name
}

// short says what a value is in a few words.
func short(v any) string {
	if v == nil {
		return "nothing"
	}
	if name := nameIn(v); name != "" {
		return name
	}
	raw, err := json.Marshal(v)
	if err != nil || len(raw) > 60 {
		return "something else"
	}
	return string(raw)
}
