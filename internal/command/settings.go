package command

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"drtmx/internal/cli"
)

// envPrefix begins the environment variables that stand for flags:
// DRTMX_RUNTIME_DIR is --runtime-dir.
const envPrefix = "DRTMX_"

func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// settings fills flags that the command line does not give: from the
// environment, then from a configuration file, and leaves the others at their
// defaults.
type settings struct {
	flags  *pflag.FlagSet
	origin map[string]string // by flag: where a value came from, if not from the command line
}

// notSettings are flags that only a command line can give.
var notSettings = []string{"help", "child", "property_file"}

// fill reads the environment and the file that the flag config names, if any.
func (s *settings) fill(c *cobra.Command) error {
	s.flags, s.origin = c.Flags(), map[string]string{}
	var errs []error
	s.each(func(f *pflag.Flag) {
		value, ok := os.LookupEnv(envName(f.Name))
		if f.Changed || !ok {
			return
		}
		if err := s.flags.Set(f.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("%s=%q: want %s", envName(f.Name), value, flagKind(f)))
			return
		}
		s.origin[f.Name] = envName(f.Name)
	})
	if file := s.flags.Lookup("config").Value.String(); file != "" && len(errs) == 0 {
		errs = append(errs, s.file(file))
	}
	if err := errors.Join(errs...); err != nil {
		return cli.Usage(err)
	}
	return nil
}

func (s *settings) each(do func(*pflag.Flag)) {
	s.flags.VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(notSettings, f.Name) {
			do(f)
		}
	})
}

// configBytesMax bounds a configuration file.
const configBytesMax = 1 << 20

// file takes the settings of a file. A table's name and a key's, joined by a
// hyphen, are the name of a flag.
func (s *settings) file(path string) error {
	st, err := os.Stat(path)
	if err == nil && st.Size() > configBytesMax {
		return fmt.Errorf("%s: %d bytes, want at most %d", path, st.Size(), configBytesMax)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	var content map[string]any
	if _, err := toml.Decode(string(b), &content); err != nil {
		var at toml.ParseError
		if errors.As(err, &at) {
			return fmt.Errorf("%s:%d: %s; want TOML, such as index = 0", path, at.Position.Line, at.Message)
		}
		return fmt.Errorf("%s: %w", path, err)
	}
	return s.table(path, "", content)
}

// table takes the keys of a table in their order of name.
func (s *settings) table(path, under string, content map[string]any) error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(content)) {
		value, full := content[key], key
		if under != "" {
			full = under + "." + key
		}
		name := strings.ReplaceAll(full, ".", "-")
		f := s.flags.Lookup(name)
		sub, isTable := value.(map[string]any)
		switch {
		case f != nil && name != "config" && !slices.Contains(notSettings, name):
			errs = append(errs, s.take(path, full, f, value))
		case isTable && under == "" && s.hasTable(key):
			errs = append(errs, s.table(path, key, sub))
		default:
			errs = append(errs, fmt.Errorf("%s: unknown key %q, want %s", path, full, oneOf(s.keys())))
		}
	}
	return errors.Join(errs...)
}

// take sets a flag from a value of the file, unless a stronger source has.
func (s *settings) take(path, key string, f *pflag.Flag, value any) error {
	text, list, ok := "", []string(nil), false
	kind := f.Value.Type()
	slice, isList := f.Value.(pflag.SliceValue)
	switch v := value.(type) {
	case string:
		text, ok = v, !isList && kind != "int" && kind != "bool"
	case int64:
		text, ok = strconv.FormatInt(v, 10), kind == "int" || kind == kindBytes
	case bool:
		text, ok = strconv.FormatBool(v), kind == "bool"
	case []any:
		if list, ok = texts(v); ok {
			ok = isList
		}
	}
	if !ok {
		return fmt.Errorf("%s: key %q: want %s, found %s", path, key, flagKind(f), tomlKind(value))
	}
	if f.Changed {
		return nil
	}
	var err error
	if isList {
		err = slice.Replace(list)
		f.Changed = true
	} else {
		err = s.flags.Set(f.Name, text)
	}
	if err != nil {
		return fmt.Errorf("%s: key %q: want %s, found %q", path, key, flagKind(f), text)
	}
	s.origin[f.Name] = path + ": " + key
	return nil
}

func texts(v []any) ([]string, bool) {
	all := make([]string, len(v))
	for i := range v {
		var ok bool
		if all[i], ok = v[i].(string); !ok {
			return nil, false
		}
	}
	return all, true
}

func (s *settings) hasTable(name string) bool {
	return slices.ContainsFunc(s.keys(), func(k string) bool { return strings.HasPrefix(k, name+"-") })
}

// keys are those a file may have.
func (s *settings) keys() (all []string) {
	s.each(func(f *pflag.Flag) {
		if f.Name != "config" {
			all = append(all, f.Name)
		}
	})
	return all
}

// blame makes bad input name where it came from instead of a flag that nobody gave.
func (s *settings) blame(err error) error {
	if !cli.IsUsage(err) {
		return err
	}
	text := err.Error()
	for name, from := range s.origin {
		for _, end := range []string{" ", ":"} {
			text = strings.ReplaceAll(text, "--"+name+end, from+end)
		}
	}
	return cli.Usage(blamed{text, err})
}

type blamed struct {
	text string
	err  error
}

func (b blamed) Error() string { return b.text }
func (b blamed) Unwrap() error { return b.err }

// flagKind says in words what values a flag takes.
func flagKind(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "int":
		return "a whole number"
	case "bool":
		return "true or false"
	case kindBytes:
		return wantBytes
	case "stringSlice", "stringArray":
		return "a list of strings"
	}
	return "a string"
}

func tomlKind(v any) string {
	switch v := v.(type) {
	case string:
		return fmt.Sprintf("the string %q", v)
	case int64:
		return fmt.Sprintf("the number %d", v)
	case float64:
		return fmt.Sprintf("the number %v", v)
	case bool:
		return fmt.Sprint(v)
	case []any:
		return "a list"
	case map[string]any:
		return "a table"
	}
	return fmt.Sprintf("%v", v)
}

// kindBytes is the type of flags that are sizes.
const (
	kindBytes = "bytes"
	wantBytes = "a size such as 512MiB or 4GiB"
)

// bytesFlag is a number of bytes.
type bytesFlag uint64

var byteUnits = []struct {
	suffix string
	bytes  uint64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"B", 1}, {"", 1}}

// Set parses a whole number with a unit, or of bytes.
func (b *bytesFlag) Set(s string) error {
	for _, u := range byteUnits {
		digits, ok := strings.CutSuffix(s, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(digits), 10, 64)
		if err != nil || n > 1<<62/u.bytes {
			return errors.New("want " + wantBytes)
		}
		*b = bytesFlag(n * u.bytes)
		return nil
	}
	return errors.New("want " + wantBytes)
}

func (b *bytesFlag) String() string {
	for _, u := range []int{3, 2, 1, 0} {
		if v := uint64(*b); v != 0 && v%byteUnits[u].bytes == 0 {
			return fmt.Sprintf("%d%s", v/byteUnits[u].bytes, byteUnits[u].suffix)
		}
	}
	return strconv.FormatUint(uint64(*b), 10)
}

// Type is kindBytes.
func (b *bytesFlag) Type() string { return kindBytes }
