//! What becomes of each extended attribute: one table, for listing, comparing, setting and removing.
//!
//! Some attributes are a second form of a property that has its own way in a copy, or hold what one machine or one
//! file system says of itself: inode numbers, layouts, keyed hashes. Copied as bytes they bring back revoked rights,
//! or name strangers. Both ends leave them alone, whatever the other end says.

/// What becomes of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Treatment {
    /// An ACL: users and groups in it are found by their names.
    Acl,
    /// File capabilities: copied; the user that they may name is found by its name.
    Capability,
    /// Copied as bytes; removed where the source has none.
    Copied,
    /// Copied as bytes; stays where the source has none, as the destination's system sets it by itself.
    SetOnly,
    /// Neither listed, compared, set nor removed.
    LeftAlone,
}

use Treatment::{Acl, Capability, Copied, LeftAlone, SetOnly};

/// The first pattern that matches decides; a star at its end stands for anything. The guide has the same table.
const TABLE: &[(&str, Treatment)] = &[
    ("system.posix_acl_access", Acl),
    ("system.posix_acl_default", Acl),
    // Views of a file system's own: `nfs4_acl`, `nfs4_dacl`, `nfs4_sacl`, `richacl`, `cifs_acl`, `ntfs_acl`,
    // `ntfs_attrib`, `smb3_acl`, and `sockprotoname` of sockets.
    ("system.*", LeftAlone),
    ("user.overlay.opaque", Copied),
    ("user.overlay.whiteout", Copied),
    ("user.overlay.whiteouts", Copied),
    ("user.overlay.redirect", Copied),
    ("user.overlay.metacopy", Copied),
    ("user.overlay.protattr", Copied),
    ("user.overlay.*", LeftAlone),
    ("user.*", Copied),
    ("security.capability", Capability),
    // Samba's ACL, with names that are the same on all machines of a domain.
    ("security.NTACL", Copied),
    // A hash with a key of this machine, over the inode's number.
    ("security.evm", LeftAlone),
    // What restorecon(8) remembers of a run on this machine.
    ("security.sehash", LeftAlone),
    ("security.restorecon_last", LeftAlone),
    // Labels of security modules (`selinux`, `SMACK64`, `apparmor`), and `ima`, the hash or signature of content.
    ("security.*", SetOnly),
    // XFS: POSIX ACLs, capabilities and labels as they lie on the disk, with numbers of users; data of DMAPI.
    ("trusted.SGI_*", LeftAlone),
    // overlayfs (`Documentation/filesystems/overlayfs.rst`): what a layer says of its names is content. The others
    // hold file handles, and counts, of one file system.
    ("trusted.overlay.opaque", Copied),
    ("trusted.overlay.whiteout", Copied),
    ("trusted.overlay.whiteouts", Copied),
    ("trusted.overlay.redirect", Copied),
    ("trusted.overlay.metacopy", Copied),
    ("trusted.overlay.protattr", Copied),
    ("trusted.overlay.*", LeftAlone),
    // GlusterFS: which file of the volume this is, and which of its copies is behind.
    ("trusted.gfid", LeftAlone),
    ("trusted.gfid2path.*", LeftAlone),
    ("trusted.pgfid.*", LeftAlone),
    ("trusted.glusterfs.*", LeftAlone),
    ("trusted.afr.*", LeftAlone),
    ("trusted.ec.*", LeftAlone),
    ("trusted.bit-rot.*", LeftAlone),
    // Lustre: on which servers the content lies, and which inode this is.
    ("trusted.lov", LeftAlone),
    ("trusted.lma", LeftAlone),
    ("trusted.lmv", LeftAlone),
    ("trusted.link", LeftAlone),
    ("trusted.fid", LeftAlone),
    ("trusted.version", LeftAlone),
    ("trusted.som", LeftAlone),
    ("trusted.hsm", LeftAlone),
    ("trusted.dmv", LeftAlone),
    ("trusted.*", Copied),
    ("lustre.*", LeftAlone),
    ("ceph.*", LeftAlone),
    ("afs.*", LeftAlone),
    ("btrfs.*", LeftAlone),
    ("bcachefs.*", LeftAlone),
    ("bcachefs_effective.*", LeftAlone),
    ("glusterfs.*", LeftAlone),
    ("gpfs.*", LeftAlone),
    ("xfsroot.*", LeftAlone),
];

impl Treatment {
    /// The treatment of an attribute, by its name.
    pub(crate) fn of(name: &[u8]) -> Treatment {
        let matches = |pattern: &str| match pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix.as_bytes()),
            None => name == pattern.as_bytes(),
        };
        // Attributes of users on JFS (`os2.`) and HFS+ (`osx.`), and what nobody knows: a destination that cannot
        // have them says so.
        TABLE.iter().find(|(pattern, _)| matches(pattern)).map_or(SetOnly, |(_, treatment)| *treatment)
    }

    /// Whether it is listed, compared and set, where ACLs and other attributes are wished for or not.
    pub(crate) fn is_carried(self, acls: bool, others: bool) -> bool {
        match self {
            Acl => acls,
            Capability | Copied | SetOnly => others,
            LeftAlone => false,
        }
    }

    /// Whether it goes where the source has none.
    pub(crate) fn is_removed(self) -> bool {
        matches!(self, Acl | Capability | Copied)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_attribute_has_the_treatment_of_its_kind() {
        let table: [(&[&str], Treatment); 5] = [
            (&["system.posix_acl_access", "system.posix_acl_default"], Acl),
            (&["security.capability"], Capability),
            (
                &[
                    "user.comment",
                    "user.overlayed",
                    "user.xdg.origin.url",
                    "user.DOSATTRIB",
                    "user.rsync.%stat",
                    "trusted.md5sum",
                    "trusted.linker",
                    "trusted.overlay.opaque",
                    "user.overlay.redirect",
                    "security.NTACL",
                ],
                Copied,
            ),
            (
                &[
                    "security.selinux",
                    "security.SMACK64",
                    "security.SMACK64EXEC",
                    "security.apparmor",
                    "security.ima",
                    "os2.comment",
                    "osx.com.apple.FinderInfo",
                    "new",
                ],
                SetOnly,
            ),
            (
                &[
                    "trusted.SGI_ACL_FILE",
                    "trusted.SGI_ACL_DEFAULT",
                    "trusted.SGI_CAP_FILE",
                    "trusted.SGI_DMI_OBJID",
                    "system.nfs4_acl",
                    "system.nfs4_dacl",
                    "system.richacl",
                    "system.cifs_acl",
                    "system.smb3_ntsd_full",
                    "system.ntfs_attrib_be",
                    "system.sockprotoname",
                    "system.posix_acl_access2",
                    "btrfs.compression",
                    "trusted.overlay.origin",
                    "trusted.overlay.upper",
                    "user.overlay.nlink",
                    "trusted.gfid",
                    "trusted.glusterfs.volume-id",
                    "trusted.afr.dirty",
                    "trusted.lov",
                    "lustre.lov",
                    "ceph.dir.layout",
                    "afs.yfs.acl",
                    "security.evm",
                ],
                LeftAlone,
            ),
        ];
        for (names, treatment) in table {
            for name in names {
                assert_eq!(Treatment::of(name.as_bytes()), treatment, "{name}");
            }
        }
    }

    #[test]
    fn every_pattern_of_the_table_is_reached() {
        for (pattern, treatment) in TABLE {
            assert_eq!(Treatment::of(pattern.replace('*', "any").as_bytes()), *treatment, "{pattern}");
        }
    }

    proptest! {
        #[test]
        fn whole_namespaces_have_one_rule(rest in "[a-zA-Z0-9_.%-]{0,30}") {
            let of = |namespace: &str| Treatment::of(format!("{namespace}{rest}").as_bytes());
            for namespace in ["trusted.SGI_", "btrfs.", "ceph.", "lustre.", "afs.", "trusted.glusterfs."] {
                prop_assert_eq!(of(namespace), LeftAlone);
            }
            prop_assert_eq!(of("user.any."), Copied);
            prop_assert!(matches!(of("system."), LeftAlone | Acl));
            // What is not carried is not removed either.
            for namespace in ["system.", "user.", "trusted.", "security.", ""] {
                let treatment = of(namespace);
                prop_assert!(treatment.is_carried(true, true) || !treatment.is_removed());
                prop_assert!(!treatment.is_carried(false, false));
            }
        }
    }
}
