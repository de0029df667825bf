//go:build invariants || race

package invariants

// Spoils reports whether transactions overwrite the rows that their callers may
// no longer use. It is for the tests of programs, so the tag race suffices.
const Spoils = true
