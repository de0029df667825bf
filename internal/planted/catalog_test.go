package planted

import "slices"

// catalogBugs are bugs of the changes of the catalogue.
var catalogBugs = []bug{
	{
		name: "RefusedVersionIsUsed", why: "the orderer uses a version that another server has refused",
		edits: []edit{{
			file: "server/catalog.go",
			old:  "		_, v = cat.tellVersion(stepMake, b)\n",
			new:  "		_, _ = cat.tellVersion(stepMake, b)\n",
		}},
		caught: []test{{"server", "TestRefusedTable", "table [0-9]+: .*unavailable|server [01] has version"}},
	},
	{
		name: "HelloBeforeUse", why: "a server tells of a version before its partitions have it",
		edits: []edit{{
			file: "server/catalog.go",
			old:  "		p.use(c)\n	}\n	was := cat.Swap(c)\n",
			new:  "		defer p.use(c)\n	}\n	was := cat.Swap(c)\n",
		}},
		caught: []test{{"server", "TestAddTable/inproc", "another catalogue"}},
	},
	{
		name: "LaterVersionIsAFault", why: "a server refuses a write of a version that it does not have yet for good",
		edits: []edit{{
			file: "server/onestep.go",
			old:  "	if int(part.Catalog) > c.Version() {\n		return conflict(exec.CauseCatalog)\n",
			new:  "	if int(part.Catalog) > c.Version() {\n		return verdict{code: wire.Bad, text: \"no such version\"}\n",
		}},
		caught: []test{{"server", "TestServerFollowsLate", "did not wait for the server"}},
	},
	{
		name: "LaterRowsAreAFault", why: "a server refuses rows in bulk of a version that it does not have yet for good",
		edits: []edit{{
			file: "server/load.go",
			old:  "		return verdict{code: wire.Unavailable, text: text}\n",
			new:  "		return verdict{code: wire.Bad, text: text}\n",
		}},
		caught: []test{{"server", "TestServerFollowsLate", "a load in bulk at a server that has not heard of the change"}},
	},
	{
		name: "UnknownIndexIsAllowed", why: "a peer that may use some tables may use an index that does not exist when its request is checked",
		edits: []edit{{
			file: "server/roles.go",
			old:  "	table := fmt.Sprintf(\"of index %d\", ix)\n",
			new:  "	if ix >= len(ps.catalog.Load().Indexes) {\n		return true\n	}\n	table := fmt.Sprintf(\"of index %d\", ix)\n",
		}},
		caught: []test{{"server", "TestRestrictedPeerAndNewIndex", "is answered"}},
	},
	{
		name: "OldRootsStay", why: "a client that knows a server does not take the roots of its new indexes",
		edits: []edit{{
			file: "internal/exec/life.go",
			old:  "		if p.clients == nil {\n			p.rkey",
			new:  "		if p.clients != nil {\n			continue\n		}\n		if p.clients == nil {\n			p.rkey",
		}},
		caught: []test{{"server", "TestAddTable/inproc", "gave up|conflict"}},
	},
}

// columnBugs are bugs of columns that are added.
var columnBugs = []bug{
	{
		name: "OldVersionMayWrite", why: "a partition takes rows of a version of the catalogue that lacks a column",
		edits: []edit{{
			file: "server/onestep.go",
			old:  "c.Indexes[ix].Table.ChangedIn() > int(part.Catalog) {",
			new:  "c.Indexes[ix].Table.ChangedIn() > int(part.Catalog)+1<<20 {",
		}},
		caught: []test{
			{"server", "TestOldVersionIsRefused", "a write of version [01] to table price"},
			{"server", "TestAddColumnToStructs", "price "},
		},
	},
	{
		name: "LaterVersionMayWrite", why: "a partition takes rows of a version of the catalogue that it does not have",
		edits: []edit{{
			file: "server/onestep.go",
			old:  "	if int(part.Catalog) > c.Version() {\n",
			new:  "	if int(part.Catalog) > c.Version()+1<<20 {\n",
		}},
		caught: []test{{"server", "TestOldVersionIsRefused", "a write of version [34]"}},
	},
	{
		name: "RowIsNotMerged", why: "a row of a program that does not know a column gives the column its default again",
		edits: []edit{{
			file: "internal/exec/write.go",
			old:  "		row = tab.MergeEarlier(as, row, old)\n",
			new:  "		row = tab.FromEarlier(as, row)\n",
		}},
		caught: []test{
			{"server", "TestAddColumn/inproc", "want .* and defaults"},
			{"server", "TestAddColumnToStructs", "price "},
		},
	},
	{
		name: "ScannedRowsStayOld", why: "a scan returns rows in the format in which they were written",
		edits: []edit{{
			file: "internal/exec/txn.go",
			old:  "				if aged {\n",
			new:  "				if aged && t.mode == closed {\n",
		}},
		caught: []test{{"server", "TestAddColumn/inproc", "scan: "}},
	},
	{
		name: "FormatByLength", why: "the format of a row is guessed from its length, which its values change",
		edits: []edit{{
			file: "tables/grow.go",
			old:  "		if l.begin(r, fixed) == fixed {\n",
			new:  "		if len(r) == fixed {\n",
		}},
		caught: []test{{"tables", "TestGrownRows", "row of "}},
	},
	{
		name: "DefaultIsZero", why: "an added column is zero in rows of before",
		edits: []edit{{
			file: "tables/grow.go",
			old:  "	if a.value == nil {\n",
			new:  "	if a.value != nil {\n",
		}},
		caught: []test{{"server", "TestAddColumn/inproc", "and defaults"}, {"tables", "TestGrownRows", "column"}},
	},
}

// buildBugs are bugs of indexes that are built online.
var buildBugs = []bug{
	{
		name: "BuildMissesOldWriters", why: "transactions that do not know of an index may write its table while it is built",
		edits: []edit{{
			file: "tables/change.go",
			old:  "	own.since = next.Version()\n	second := a.Index\n",
			new:  "	second := a.Index\n",
		}},
		caught: []test{{"server", "TestAddIndex/inproc", "index x[0-9]+.by_a has "}},
	},
	{
		name: "MovedEntryStays", why: "a row that moves in an index that is being built leaves its entry behind",
		edits: []edit{{
			file: "internal/exec/build.go",
			old:  "	case old != nil && misfit == nil:\n",
			new:  "	case old != nil && misfit == nil && row == nil:\n",
		}},
		caught: []test{{"server", "TestAddIndex/inproc", "index x[0-9]+.by_a has "}},
	},
	{
		name: "OtherRowsEntryIsReplaced", why: "the entry of a row replaces that of another one with the same key while an index is built",
		edits: []edit{{
			file: "internal/exec/build.go",
			old:  "	case ix.EntryOf(was).Compare(primary) != 0:\n		return false, nil\n",
			new:  "",
		}},
		caught: []test{{"server", "TestIndexIsWithdrawn", "value 17: <nil>"}},
	},
	{
		name: "WithdrawnEntriesStay", why: "the entries of a withdrawn index keep their memory",
		edits: []edit{{
			file: "server/catalog.go",
			old:  "		cat.s.workers.background(func() { cat.empty(id) })\n",
			new:  "		_ = id\n",
		}},
		caught: []test{{"server", "TestIndexIsWithdrawn", "the withdrawn index has [0-9]+ entries"}},
	},
	{
		name: "UnbuiltIsRead", why: "an index is read before it is complete",
		edits: []edit{{
			file: "tables/change.go",
			old:  "	ix.ID, ix.hidden = len(next.Indexes), true\n",
			new:  "	ix.ID = len(next.Indexes)\n",
		}},
		caught: []test{{"server", "TestServerBuildsLate", "an index is read before it is built"}},
	},
	{
		name: "BucketsAreSkipped", why: "a build leaves out buckets of a hash index",
		edits: []edit{{
			file: "server/build.go",
			old:  "more && len(raw) < buildRows; bucket++ {\n",
			new:  "more && len(raw) < buildRows; bucket += 1 + bucket%2 {\n",
		}},
		caught: []test{{"server", "TestKeysOfAHashIndex", "key [0-9]+ is missing"}, {"server", "TestAddIndex/inproc", "entries for"}},
	},
}

func init() { bugs = slices.Concat(bugs, catalogBugs, columnBugs, buildBugs) }
