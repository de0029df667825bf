//go:build !invariants && !race

package invariants

// Spoils reports whether transactions overwrite the rows that their callers may
// no longer use.
const Spoils = false
