// Package props reads YCSB properties and reports their faults. A value of the
// wrong type is an error that names the property; it is not silently replaced
// by the default. All faults of one workload are reported together.
package props

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/magiconair/properties"
)

// ErrProperty reports a property that does not exist or has an invalid value.
// The text names the property and what was expected.
var ErrProperty = errors.New("bad property")

// Reader reads properties and collects their faults. It is for one goroutine.
type Reader struct {
	p      *properties.Properties
	faults []error
}

// NewReader returns a Reader of p, which it does not change.
func NewReader(p *properties.Properties) *Reader { return &Reader{p: p} }

// Join adds the faults of another reader's Err, or any other error.
func (r *Reader) Join(err error) {
	var faults *Faults
	switch {
	case errors.As(err, &faults):
		for _, f := range faults.list {
			r.add(f)
		}
	case err != nil:
		r.add(err)
	}
}

// Faults has all faults of a set of properties. It matches ErrProperty.
type Faults struct{ list []error }

func (f *Faults) Error() string {
	var b strings.Builder
	for i, err := range f.list {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(err.Error())
	}
	return b.String()
}

// Unwrap returns ErrProperty and the single faults.
func (f *Faults) Unwrap() []error { return append([]error{ErrProperty}, f.list...) }

// Err returns nil if all properties read so far are valid, otherwise an
// ErrProperty with all faults.
func (r *Reader) Err() error {
	if len(r.faults) == 0 {
		return nil
	}
	return &Faults{r.faults}
}

// Fault adds a fault found by the caller.
func (r *Reader) Fault(format string, args ...any) {
	r.add(fmt.Errorf(format, args...))
}

// add records a fault; it records equal faults once.
func (r *Reader) add(fault error) {
	if !slices.ContainsFunc(r.faults, func(err error) bool { return err.Error() == fault.Error() }) {
		r.faults = append(r.faults, fault)
	}
}

func (r *Reader) want(name, value, expected string) {
	if value == "" {
		r.Fault("%s has no value: want %s", name, expected)
		return
	}
	r.Fault("%s %q: want %s", name, value, expected)
}

// Has reports whether a property is given.
func (r *Reader) Has(name string) bool {
	_, ok := r.p.Get(name)
	return ok
}

// String reads text; it may be empty.
func (r *Reader) String(name, otherwise string) string { return r.p.GetString(name, otherwise) }

// Most is the bound for numbers without their own bound: sums of a few such numbers
// do not overflow.
const Most = math.MaxInt64 / 4

// Int reads a whole number from lo to hi.
func (r *Reader) Int(name string, otherwise, lo, hi int64) int64 {
	text, ok := r.p.Get(name)
	if !ok {
		return otherwise
	}
	v, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || v < lo || v > hi {
		expected := fmt.Sprintf("a whole number from %d to %d", lo, hi)
		if hi >= Most {
			expected = fmt.Sprintf("a whole number of at least %d", lo)
		}
		r.want(name, text, expected)
		return otherwise
	}
	return v
}

// Float reads a number from lo to hi.
func (r *Reader) Float(name string, otherwise, lo, hi float64) float64 {
	text, ok := r.p.Get(name)
	if !ok {
		return otherwise
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || !(v >= lo && v <= hi) { // also refuses NaN
		r.want(name, text, fmt.Sprintf("a number from %v to %v", lo, hi))
		return otherwise
	}
	return v
}

// Bool reads true or false, in the spellings that go-ycsb takes.
func (r *Reader) Bool(name string, otherwise bool) bool {
	text, ok := r.p.Get(name)
	if !ok {
		return otherwise
	}
	switch strings.ToLower(strings.TrimSpace(text)) {
	case "1", "true", "yes", "on":
		return true
	case "0", "false", "no", "off":
		return false
	}
	r.want(name, text, "true or false")
	return otherwise
}

// OneOf reads one of several words, in upper or lower case.
func (r *Reader) OneOf(name, otherwise string, choices ...string) string {
	text, ok := r.p.Get(name)
	if !ok {
		return otherwise
	}
	v := strings.ToLower(strings.TrimSpace(text))
	if !slices.Contains(choices, v) {
		r.want(name, text, Choices(choices))
		return otherwise
	}
	return v
}

// Choices lists words: "a, b or c".
func Choices(all []string) string {
	if len(all) < 2 {
		return strings.Join(all, "")
	}
	return strings.Join(all[:len(all)-1], ", ") + " or " + all[len(all)-1]
}
