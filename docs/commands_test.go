package docs

import (
	"bytes"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"drtmx/internal/command"
)

// Every make target, and every variable given to one, is in the Makefile.
func TestPagesNameTargetsThatExist(t *testing.T) {
	makefile := read(t, "../Makefile")
	targets, variables := map[string]bool{}, map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z-]*):`).FindAllStringSubmatch(makefile, -1) {
		targets[m[1]] = true
	}
	for _, m := range regexp.MustCompile(`(?m)^([A-Z]+) *\??=|\$\(([A-Z]+)\)|\$\(if \$\(([A-Z]+)\)`).FindAllStringSubmatch(makefile, -1) {
		variables[m[1]+m[2]+m[3]] = true
	}
	named := 0
	for _, p := range look(t).pages {
		for _, c := range p.commands() {
			words := strings.Fields(c)
			if end := slices.Index(words, "&&"); end >= 0 {
				words = words[:end]
			}
			at := slices.Index(words, "make")
			if at < 0 || at > 0 && !strings.Contains(words[at-1], "=") {
				continue
			}
			for _, w := range words[at+1:] {
				name, _, set := strings.Cut(w, "=")
				switch {
				case w == "-s":
				case set && !variables[name]:
					t.Errorf("%s: %s: the Makefile has no variable %s", p.path, c, name)
				case !set && regexp.MustCompile(`^[a-z][a-z-]*$`).MatchString(w):
					if named++; !targets[w] {
						t.Errorf("%s: %s: the Makefile has no target %s", p.path, c, w)
					}
				}
				if set && strings.HasPrefix(w, name+"='") {
					break // the rest is its value
				}
			}
		}
	}
	if named < 20 {
		t.Errorf("found %d targets", named)
	}
}

// help are the flags of each command of drtmx, by its words: "tpcc run".
func help(t *testing.T) map[string]map[string]bool {
	t.Helper()
	all := map[string]map[string]bool{}
	var visit func(words []string)
	visit = func(words []string) {
		var out, errs bytes.Buffer
		if status := command.Main(append(slices.Clone(words), "--help"), &out, &errs); status != 0 {
			t.Fatalf("%v --help: status %d, %s", words, status, &errs)
		}
		flags := map[string]bool{"help": true, "version": len(words) == 0}
		for _, m := range regexp.MustCompile(`(?m)^ +(?:-\w, )?--([A-Za-z-]+)`).FindAllStringSubmatch(out.String(), -1) {
			flags[m[1]] = true
		}
		all[strings.Join(words, " ")] = flags
		_, below, ok := strings.Cut(out.String(), "Available Commands:\n")
		if !ok {
			return
		}
		below, _, _ = strings.Cut(below, "\n\n")
		for _, l := range strings.Split(below, "\n") {
			if f := strings.Fields(l); len(f) > 0 && f[0] != "help" {
				visit(append(slices.Clone(words), f[0]))
			}
		}
	}
	visit(nil)
	if len(all) < 15 {
		t.Fatalf("drtmx has the commands %v: want more", slices.Sorted(maps.Keys(all)))
	}
	return all
}

var commandName = regexp.MustCompile(`^-?-?[a-z-]+$`)

// Every command of drtmx on a page exists, with its flags.
func TestPagesNameCommandsThatExist(t *testing.T) {
	flags := help(t)
	r := look(t)
	named, seen := 0, map[string]bool{}
	for _, p := range r.pages {
		if p.generated {
			continue
		}
		for _, c := range p.commands() {
			words := strings.Fields(strings.ReplaceAll(c, "   ", " | "))
			at := slices.IndexFunc(words, func(w string) bool { return w == "drtmx" || strings.HasSuffix(w, "/drtmx") })
			if at < 0 || at > 0 && strings.Contains(c, "go-ycsb") {
				continue
			}
			rest := words[at+1:]
			if end := slices.IndexFunc(rest, func(w string) bool { return strings.ContainsAny(w, "|&;>#") }); end >= 0 {
				rest = rest[:end]
			}
			name := ""
			for len(rest) > 0 && flags[strings.TrimSpace(name+" "+rest[0])] != nil {
				name, rest = strings.TrimSpace(name+" "+rest[0]), rest[1:]
			}
			if name == "" && len(rest) > 0 && !commandName.MatchString(rest[0]) {
				continue // not a command line
			}
			if name == "" && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
				t.Errorf("%s: %s: drtmx has no command %s", p.path, c, rest[0])
				continue
			}
			named++
			seen[name] = true
			for _, w := range rest {
				w, _, _ = strings.Cut(w, "=")
				if flag, ok := strings.CutPrefix(w, "--"); ok && !flags[name][flag] && !r.words[flag] {
					t.Errorf("%s: %s: drtmx %s has no flag --%s", p.path, c, name, flag)
				}
			}
		}
	}
	if named < 60 {
		t.Errorf("found %d commands", named)
	}
	for name := range flags {
		if name != "" && !seen[name] && !group(flags, name) {
			t.Errorf("no page shows drtmx %s", name)
		}
	}
}

// group reports whether a command only holds others.
func group(flags map[string]map[string]bool, name string) bool {
	for other := range flags {
		if strings.HasPrefix(other, name+" ") {
			return true
		}
	}
	return false
}

// Every flag that a page names is one of some command, or a string of a Go file.
func TestPagesNameFlagsThatExist(t *testing.T) {
	all := map[string]bool{}
	for _, flags := range help(t) {
		maps.Copy(all, flags)
	}
	r := look(t)
	for _, p := range r.pages {
		if p.generated {
			continue
		}
		for _, span := range p.spans() {
			m := regexp.MustCompile(`^--([A-Za-z-]+)`).FindStringSubmatch(span)
			if m != nil && !all[m[1]] && !r.words[m[1]] && !strings.HasPrefix(m[1], "auto-compaction-") { // of etcd
				t.Errorf("%s: no command has the flag --%s", p.path, m[1])
			}
		}
	}
}

// The defaults in the table of tpcc run are those of the command.
func TestDefaultsInTheTable(t *testing.T) {
	var out, errs bytes.Buffer
	if status := command.Main([]string{"tpcc", "run", "--help"}, &out, &errs); status != 0 {
		t.Fatalf("status %d, %s", status, &errs)
	}
	_, table, _ := strings.Cut(read(t, "operations.md"), "\n### tpcc run\n")
	table, _, _ = strings.Cut(table, "\n### ")
	compared := 0
	for _, row := range regexp.MustCompile("(?m)^\\| `--([a-z-]+)` \\| ([^ |]+) \\|").FindAllStringSubmatch(table, -1) {
		help := regexp.MustCompile(`(?m)^ +(?:-\w, )?--` + row[1] + ` .*$`).FindString(out.String())
		zero := (row[2] == "0" || row[2] == "false") && help != "" && !strings.Contains(help, "(default ")
		if !zero && !strings.Contains(help, "(default "+row[2]+")") && !strings.Contains(help, `(default "`+row[2]+`")`) &&
			!strings.Contains(help, "(default ["+row[2]+"])") {
			t.Errorf("operations.md says that the default of --%s is %s; the command says %s", row[1], row[2], strings.TrimSpace(help))
		}
		compared++
	}
	if compared < 20 {
		t.Errorf("compared %d defaults", compared)
	}
}

// Every flag of the commands that people use is on a page.
func TestFlagsAreOnAPage(t *testing.T) {
	pages := ""
	for _, p := range look(t).pages {
		pages += p.text
	}
	for name, flags := range help(t) {
		for flag := range flags {
			if flag != "help" && flag != "version" && !regexp.MustCompile(`--`+flag+`\b`).MatchString(pages) {
				t.Errorf("drtmx %s --%s is on no page", name, flag)
			}
		}
	}
}

// Every go test on a page names packages that exist, and functions of them.
func TestPagesNameGoTestsThatExist(t *testing.T) {
	r := look(t)
	named := 0
	for _, p := range r.pages {
		if p.generated {
			continue
		}
		for _, c := range p.commands() {
			at := strings.Index(c, "go test ")
			if at < 0 {
				continue
			}
			var packages []string
			patterns := map[string]string{}
			words := strings.Fields(c[at:])
			for i, w := range words {
				switch {
				case strings.HasPrefix(w, "./"):
					packages = append(packages, strings.TrimPrefix(w, "./"))
				case (w == "-run" || w == "-bench") && i+1 < len(words):
					patterns[w], _, _ = strings.Cut(strings.Trim(words[i+1], "'"), "/")
				}
			}
			if len(packages) == 0 {
				continue
			}
			named++
			for _, pattern := range patterns {
				if pattern != "XXX" && pattern != "^$" && pattern != "." && !r.matches(packages, pattern) {
					t.Errorf("%s: %s: %s matches nothing there", p.path, c, pattern)
				}
			}
		}
	}
	if named < 5 {
		t.Errorf("found %d commands", named)
	}
}

// matches reports whether a pattern matches a function of one of the packages.
func (r *repository) matches(packages []string, pattern string) bool {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return false
	}
	for _, want := range packages {
		for dir, funcs := range r.funcs {
			below, all := strings.CutSuffix(want, "/...")
			if dir != want && !(all && (dir == below || strings.HasPrefix(dir, below+"/"))) && want != "..." && path.Clean(want) != dir {
				continue
			}
			for f := range funcs {
				if testName.MatchString(f) && re.MatchString(f) {
					return true
				}
			}
		}
	}
	return false
}

// Every environment variable whose name begins with DRTMX_ is one that a Go file
// reads, or that of a flag of serve.
func TestPagesNameVariablesThatExist(t *testing.T) {
	serve := help(t)["serve"]
	r := look(t)
	for _, p := range r.pages {
		for _, name := range regexp.MustCompile(`\bDRTMX_[A-Z_]+`).FindAllString(p.text, -1) {
			flag := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, "DRTMX_")), "_", "-")
			if !r.words[name] && !serve[flag] {
				t.Errorf("%s: nothing reads %s", p.path, name)
			}
		}
	}
}
