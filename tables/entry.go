package tables

// Entry is one row of a scan. Its key and row are valid until the transaction's
// body returns.
type Entry struct {
	Key Key
	Row Row
}
