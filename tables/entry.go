package tables

// Entry is one row of a scan. Key and Row are views: Clone them to keep them.
type Entry struct {
	Key Key
	Row Row
}
