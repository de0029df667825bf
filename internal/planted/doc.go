// Package planted shows that the tests of the engine can fail. It holds a table
// of bugs. Each bug is a set of edits of the engine's source text, and names the
// tests that must fail because of it. Most of these bugs were seen in released
// code of such systems; the others are one step away from this engine's code.
//
// The package has no code to import, and the engine has no trace of the bugs:
// an edit is applied to a copy of the file, and `go test -overlay` compiles the
// copy in place of the file. TestEditsApply runs with all other tests and checks
// that every edit still applies, so that a change of the engine cannot lose a
// bug unnoticed. TestBugsAreCaught builds each bug and runs its tests with it
// and without it. That takes minutes, so it runs on demand:
//
//	make planted              # every bug
//	make planted BUGS=Lock    # the bugs whose names match a regular expression
//
// To add a bug, add an entry to a table of this package. To move code that a bug
// edits, move the text of the edit with it.
package planted
