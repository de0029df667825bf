//go:build !planted

package planted

// Enabled reports whether bugs can be planted.
const Enabled = false

// Is reports whether b is planted: never.
func Is(Bug) bool { return false }
