// Package plantedtest shows that tests find planted bugs.
package plantedtest

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"drtmx/internal/planted"
)

// Case is a bug and a test of the same package that must fail because of it.
type Case struct {
	Bug  planted.Bug
	Test string // as for -run
	Want string // a regular expression that the output must match
}

// Bound is the time within which a test must notice a bug.
const Bound = 60 * time.Second

// Run runs each case's test in processes of their own: with the bug it must
// fail and say what is wanted, without it it must pass.
func Run(t *testing.T, cases []Case) {
	t.Helper()
	if !planted.Enabled {
		t.Skip("bugs are planted under the build tag planted")
	}
	sound := map[string]bool{}
	for _, c := range cases {
		t.Run(c.Bug.String(), func(t *testing.T) {
			if done := sound[c.Test]; !done {
				sound[c.Test] = true
				if out, err := run(planted.None, c.Test); err != nil || !strings.Contains(out, "--- PASS") {
					t.Fatalf("%s fails without any bug: %v\n%s", c.Test, err, out)
				}
			}
			start := time.Now()
			out, err := run(c.Bug, c.Test)
			took := time.Since(start)
			switch {
			case err == nil:
				t.Fatalf("%s passes although the bug %v is planted", c.Test, c.Bug)
			case !strings.Contains(out, "--- FAIL"):
				t.Fatalf("%s was not noticed but broke the test in %v: %v\n%s", c.Bug, took, err, out)
			}
			found := regexp.MustCompile(c.Want).FindString(out)
			if found == "" {
				t.Fatalf("%s failed, but not for the reason %q:\n%s", c.Test, c.Want, out)
			}
			t.Logf("caught by %s in %v: %s", c.Test, took.Round(time.Millisecond), strings.TrimSpace(found))
		})
	}
}

// run runs one test of this binary. Random tests go on, with one seed after
// the other, until they fail or their time is up.
func run(b planted.Bug, test string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), Bound+10*time.Second)
	defer cancel()
	var pattern []string
	for _, part := range strings.Split(test, "/") {
		pattern = append(pattern, "^"+regexp.QuoteMeta(strings.ReplaceAll(part, " ", "_"))+"$")
	}
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run="+strings.Join(pattern, "/"), "-test.v", "-test.failfast",
		"-test.timeout="+Bound.String())
	cmd.Env = os.Environ()
	if b != planted.None {
		cmd.Env = append(cmd.Env, planted.Env+"="+b.String(), "DRTMX_SIM="+(Bound/2).String())
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}
